"""What is true: the visibility rule, golden attention, and the evidence derived from them.

Imports `cases` only. A reference never calls a helper of what it judges.
"""
