"""Where a recipe does not hold, and why: one sentence each."""

from __future__ import annotations

from cases.schema import AttentionCase
from references.certificates.base import MIN_HEAD_DIM
from references.traits import KernelTraits


def wide_enough(case: AttentionCase, traits: KernelTraits) -> str | None:
    """Every recipe: enough columns of V for code words."""
    del traits
    if case.head_dim_vo < MIN_HEAD_DIM:
        return f"head_dim_vo {case.head_dim_vo} gives fewer than {MIN_HEAD_DIM} code columns"
    return None
