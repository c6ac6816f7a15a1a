"""Metamorphic checks: the same question put another way must get the same answer, whatever a reference says.

A relation is one small file: how to put the question of a case in another way (`relation.py` says what that is), and
whether the answers must agree bit for bit. `checking.py` runs them, `comparing.py` compares.
"""
