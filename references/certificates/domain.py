"""Where a recipe does not hold, and why: one sentence each."""

from __future__ import annotations

from cases.schema import AttentionCase
from references.certificates.base import MIN_HEAD_DIM
from references.traits import UNIT_ROUNDOFF, KernelTraits

PLAIN_BOUND = 8  # of walk codes
CHAIN_LIMIT = 0.25


def wide_enough(case: AttentionCase, traits: KernelTraits) -> str | None:
    """Every recipe: enough columns of V for code words, and partial outputs that keep the integer."""
    lost = UNIT_ROUNDOFF[case.dtype] * PLAIN_BOUND * (2 * traits.merge_legs - 1) * 2 * traits.out_ulp
    if lost >= CHAIN_LIMIT:
        return (
            f"{case.dtype} partial outputs of {traits.merge_legs} legs, good to {traits.out_ulp:g} ulp, round too much"
        )
    if case.head_dim_vo < MIN_HEAD_DIM:
        return f"head_dim_vo {case.head_dim_vo} gives fewer than {MIN_HEAD_DIM} code columns"
    return None
