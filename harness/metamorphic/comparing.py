"""Two outputs that should agree, bit for bit or within a bound: how far apart they are, and where most."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from harness.adapters.protocol import AttentionOutput
from harness.metamorphic.relation import Variant
from references.by_rows import row_slices


@dataclass(frozen=True, slots=True)
class Allowed:
    """How far rows may be apart: out fp64 [n, num_qo_heads, head_dim_vo], lse fp64 natural [n, num_qo_heads]."""

    out: Tensor
    lse: Tensor


@dataclass(frozen=True, slots=True)
class Gap:
    """How one run differs from the first, as host numbers.

    largest, largest_lse: absolute differences (inf for NaN)
    ratio:                the largest share of what is allowed that is used up; None where bits are compared
    rows_over, worst:     rows that differ by more than allowed; the worst of them as row * num_qo_heads + head,
                          in the rows of the other run
    in_lse:               the output agrees, and only the LSE does not
    """

    largest: float
    largest_lse: float | None
    ratio: float | None
    rows_over: int
    worst: int
    in_lse: bool

    @property
    def holds(self) -> bool:
        return self.rows_over == 0


def gap_between(first: AttentionOutput, variant: Variant, other: AttentionOutput, allowed: Allowed | None) -> Gap:
    """`first`: of the original; `allowed` None: bit for bit. Both of the right shapes, with a natural LSE or none."""
    gap, share = _output_gap(first.out[variant.rows], other.out, None if allowed is None else allowed.out)
    figures = [gap.amax(), share.amax(), share.argmax(), (share > 1).any(1).sum()]
    if first.lse is None or other.lse is None:
        largest, ratio, worst, over = torch.stack([f.double() for f in figures]).tolist()
        return Gap(largest, None, None if allowed is None else ratio, int(over), int(worst), in_lse=False)
    lse_gap = _distance(first.lse[variant.rows], other.lse)
    lse_share = _share(lse_gap, None if allowed is None else allowed.lse)
    figures += [lse_gap.amax(), lse_share.amax(), lse_share.argmax(), ((share > 1) | (lse_share > 1)).any(1).sum()]
    # One read of all: each waits for the device.
    largest, ratio, worst, _, by_lse, lse_ratio, lse_worst, over = torch.stack([f.double() for f in figures]).tolist()
    in_lse = ratio <= 1 < lse_ratio
    return Gap(
        largest,
        by_lse,
        None if allowed is None else max(ratio, lse_ratio),
        int(over),
        int(lse_worst if in_lse else worst),
        in_lse,
    )


def _output_gap(first: Tensor, other: Tensor, allowed: Tensor | None) -> tuple[Tensor, Tensor]:
    """Largest difference, and largest share of the allowed, by row and head: fp64 [n, num_qo_heads] each."""
    gaps, shares = [], []
    for at in row_slices(other):
        gap = _distance(first[at].double(), other[at].double())
        gaps.append(gap.amax(-1))
        shares.append(_share(gap, None if allowed is None else allowed[at]).amax(-1))
    return torch.cat(gaps), torch.cat(shares)


def _distance(a: Tensor, b: Tensor) -> Tensor:
    """|a - b|, 0 for equal infinities and for two NaN, infinite for one."""
    same = (a == b) | (a.isnan() & b.isnan())
    return torch.where(same, 0.0, (a - b).abs().nan_to_num(nan=torch.inf))


def _share(gap: Tensor, allowed: Tensor | None) -> Tensor:
    """gap / allowed, above 1 where it is too large; 0 / 0 is 0. `allowed` None is 0 everywhere."""
    if allowed is None:
        return torch.where(gap == 0, 0.0, torch.inf)
    return torch.where(gap == 0, 0.0, gap / allowed)
