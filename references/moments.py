"""Second moments of the attention weights, gathered in golden attention's own pass.

With p_k the exact weight of key k and o = sum p_k v_k the exact row, the error bounds need
sum p_k^2 (v_k - o)^2 and sum p_k |v_k - o|. The first expands into sums of p^2, p^2 v and p^2 v^2;
the second is bounded by Cauchy-Schwarz from sum p v^2. All are matrix products beside P @ V; they
run in fp32 on a CPU, and `CANCELLATION` covers what the expansion loses by that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cases.schema import AttentionCase
from references.passes import Keys, Weights

CANCELLATION = 2.0**-18  # of the sum of magnitudes: fp32 products summed over up to 2^20 keys, pairwise


@dataclass(frozen=True, slots=True)
class RowMoments:
    """All over the visible keys of a row; v includes v_scale; p sums to `mass` (below 1 beside a sink).

    mass, p2, p_max, score_max, v_max: fp64 [total_q, Hq]: sum p, sum p^2, max p, a bound on |score|
        before softcap as sum_d |scale q_d k_d| and, capped, on |score|; a bound on |v|
    score_terms: fp64 [total_q, Hq], a bound on sum_d |scale * q_d * k_d| over visible keys
    pv2, p2v, p2v2: fp32 [total_q, Hq, Dvo]: sum p v^2, sum p^2 v, sum p^2 v^2
    leg: fp64 [total_q, Hq, Dvo]: the part of o that the cached prefix gives
    """

    mass: Tensor
    p2: Tensor
    p_max: Tensor
    score_max: Tensor
    score_terms: Tensor
    v_max: Tensor
    pv2: Tensor
    p2v: Tensor
    p2v2: Tensor
    leg: Tensor

    def slice(self, rows: slice) -> RowMoments:
        """Those of some rows."""
        return RowMoments(*(getattr(self, name)[rows] for name in RowMoments.__dataclass_fields__))

    @staticmethod
    def joined(parts: Sequence[RowMoments]) -> RowMoments:
        """Of the rows of all parts."""
        names = RowMoments.__dataclass_fields__
        return RowMoments(*(torch.cat([getattr(part, name) for part in parts]) for name in names))

    def spread(self, out: Tensor) -> Tensor:
        """An upper bound of sum p |v - out|, fp64 [total_q, Hq, Dvo]."""
        return self.squared_deviation(out * out).sqrt_()

    def squared_spread(self, out: Tensor, square: Tensor | None = None) -> Tensor:
        """An upper bound of sum p^2 (v - out)^2, fp64 [total_q, Hq, Dvo]; square: out^2, if it is there already.

        sum w (v - c)^2 = second - 2 c first + c^2 zeroth, and what rounding may have taken from it.
        """
        second, cross, p2 = self.p2v2.double(), self.p2v * out, self.p2[..., None]
        found = torch.addcmul(second, out * out if square is None else square, p2)
        slack = torch.add(found, cross.abs(), alpha=2)
        return found.sub_(cross, alpha=2).clamp_(min=0).add_(slack, alpha=CANCELLATION)

    def squared_deviation(self, square: Tensor) -> Tensor:
        """An upper bound of (sum p |v - out|)^2: mass * sum p (v - out)^2, the same way; square: out^2."""
        # Beside a sink, sum p v is still `out`: the sink's value is 0. So c first is c^2.
        second, mass = self.pv2.double(), self.mass[..., None]
        slack = torch.addcmul(second, square, mass + 2)
        return second.addcmul_(square, mass - 2).clamp_(min=0).add_(slack, alpha=CANCELLATION).mul_(mass)

    def magnitude(self) -> Tensor:
        """An upper bound of sum p |v|."""
        return (self.pv2 * (self.mass[..., None] * (1 + CANCELLATION))).sqrt_()


class MomentSums:
    """Running sums for a batch of tiles, in the layout of the golden pass: p [B, Hkv, splits, G * R, columns], sums
    [B, Hkv, 1, G * R, ..], weights being exp(s - the row's largest score so far)."""

    def __init__(self) -> None:
        self._p2: Tensor | None = None
        self._sizes: list[Tensor] = []
        self._linear: Tensor | None = None
        self._square: Tensor | None = None

    def add(self, w: Weights, keep: Tensor | None, keys: Keys, values: Tensor, size: Tensor | None) -> None:
        """One chunk of keys: earlier sums shrink by keep [.., 1]. values [B, Hkv, splits, columns, ..]: v, or with
        w.p_squared [v, v^2]; then p @ v^2 comes from elsewhere. Without, products are of fp32, which on a CPU take half
        the time. size: the largest capped |s| [.., 1]."""
        assert keys.k_norm is not None
        assert keys.v_max is not None
        sizes = [each[..., None, None, None] for each in (keys.k_norm, keys.v_max)] + ([] if size is None else [size])
        self._sizes = list(map(torch.maximum, self._sizes, sizes)) if self._sizes else sizes
        squared = None if keep is None else keep * keep
        if w.p_squared is not None and w.p2 is not None:
            self._square = grown(self._square, squared, summed(torch.matmul(w.p_squared, values)))
            self._p2 = grown(self._p2, squared, summed(w.p2))
            return
        v = values.float()
        squares = v * v
        p = w.p.float()
        linear = summed(torch.matmul(p, squares))
        self._linear = grown(self._linear, None if keep is None else keep.float(), linear)
        p_squared = p.square_()
        square = summed(torch.matmul(p_squared, torch.cat([v, squares], -1)))
        self._square = grown(self._square, None if squared is None else squared.float(), square)
        self._p2 = grown(self._p2, squared, summed(p_squared.sum(-1, keepdim=True, dtype=torch.float64)))

    def found(self, top: Tensor) -> tuple[list[Tensor], Tensor | None, Tensor | None]:
        """For `row_moments`: sum p^2 and the largest |k|, |v_j| and, capped, |s|, each like top [.., 1]; p @ v^2 if it
        is made here, and p^2 @ [v, v^2]."""
        assert self._p2 is not None
        return [self._p2, *(each.expand_as(top) for each in self._sizes)], self._linear, self._square


def row_moments(
    case: AttentionCase,
    q_norm: Tensor,
    scalars: Sequence[Tensor],
    linear: Tensor,
    square: Tensor,
    *,
    mass: Tensor,
    scale: Tensor,
    leg: Tensor,
) -> RowMoments:
    """Of rows [total_q, Hq, ..], from their sums, as in `MomentSums.found`; q_norm, mass, scale [.., 1]: |q| times the
    scale of scores, sum p, and the weight of the largest score."""
    p2, k_norm, v_max, *size = scalars
    terms, v_scale, dim = q_norm * k_norm, case.v_scale, case.head_dim_vo
    # In fp64: the scale of a row beside a large sink does not fit fp32.
    scale_squared = scale * scale
    squares = square * scale_squared
    return RowMoments(
        mass=mass.squeeze(-1),
        p2=(p2 * scale_squared).squeeze(-1),
        p_max=scale.squeeze(-1),
        score_max=(size[0] if size else terms).squeeze(-1),
        score_terms=terms.squeeze(-1),
        v_max=(v_max * v_scale).squeeze(-1),
        pv2=(linear * (scale * v_scale**2)).float(),
        p2v=(squares[..., :dim] * v_scale).float(),
        p2v2=(squares[..., dim:] * v_scale**2).float(),
        leg=leg,
    )


def grown(old: Tensor | None, keep: Tensor | None, new: Tensor) -> Tensor:
    """old * keep + new, for sums that begin with their first chunk."""
    return new if old is None or keep is None else torch.addcmul(new, old, keep)


def summed(x: Tensor) -> Tensor:
    """Over the splits of a chunk, dimension 2."""
    return x if x.shape[2] == 1 else x.sum(2, keepdim=True)
