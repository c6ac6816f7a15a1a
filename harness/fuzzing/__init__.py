"""Fuzzing sessions: generated cases through adapters, until distinct failures are found, small and explained.

limits -> strategies (cases/) -> engine (Hypothesis, here) -> kernels (a worker that may die)
                                   |-> finding: shrunk, explained, set aside; the engine goes on
"""
