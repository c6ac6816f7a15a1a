"""Second moments of the attention weights, gathered in golden attention's own pass.

With p_k the exact weight of key k and o = sum p_k v_k the exact row, the error bounds need
sum p_k^2 (v_k - o)^2 and sum p_k |v_k - o|. The first expands into sums of p^2, p^2 v and p^2 v^2;
the second is bounded by Cauchy-Schwarz from sum p v^2. All are matrix products beside P @ V; they
run in fp32 on a CPU, and `CANCELLATION` covers what the expansion loses by that.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cases.schema import AttentionCase
from references.weights import Weights

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
    """Running sums for a batch of tiles, in the layout of the golden pass: s and p [B, Hkv, splits, G * R, keys], sums
    [B, Hkv, 1, G * R, ...].

    q: fp64 [B, Hkv, 1, G * R, d], times the scale of the scores.
    """

    def __init__(self, case: AttentionCase, q: Tensor) -> None:
        self._case = case
        self._q_norm = q.norm(dim=-1, keepdim=True)
        self._p2: Tensor | None = None
        self._score_max: Tensor | None = None
        self._k_norm: Tensor | None = None
        self._v_max: Tensor | None = None
        self.linear: Tensor | None = None
        self._square: Tensor | None = None

    def look(self, s: Tensor, k: Tensor, v: Tensor) -> None:
        """Sizes in one chunk: capped scores s (-inf where masked), k and v fp64 [B, Hkv, splits, keys, d]."""
        self._k_norm = _larger(self._k_norm, k.norm(dim=-1).amax((2, 3))[..., None, None, None])
        self._v_max = _larger(self._v_max, v.abs().amax((2, 3, 4))[..., None, None, None])
        if self._case.logits_soft_cap is not None:
            size = s.masked_fill(s == -torch.inf, 0.0).abs().amax((2, 4), keepdim=True)
            self._score_max = _larger(self._score_max, size)

    def add(self, w: Weights, keep: Tensor | None, values: Tensor) -> None:
        """One chunk of keys: earlier sums shrink by keep [.., 1]. values: v, or with w.p_squared [v, v^2]; then p @ v^2
        comes from elsewhere (`linear`). Without, products are of fp32, which on a CPU take half the time."""
        squared = None if keep is None else keep * keep
        if w.p_squared is not None and w.p2 is not None:
            self._square = grown(self._square, squared, summed(torch.matmul(w.p_squared, values)))
            self._p2 = grown(self._p2, squared, summed(w.p2))
            return
        v = values.float()
        squares = v * v
        p = w.p.float()
        linear = summed(torch.matmul(p, squares))
        self.linear = grown(self.linear, None if keep is None else keep.float(), linear)
        p_squared = p.square_()
        square = summed(torch.matmul(p_squared, torch.cat([v, squares], -1)))
        self._square = grown(self._square, None if squared is None else squared.float(), square)
        self._p2 = grown(self._p2, squared, summed(p_squared.sum(-1, keepdim=True, dtype=torch.float64)))

    def scalars(self, top: Tensor, lse: Tensor, mass: Tensor) -> list[Tensor]:
        """The first six fields of RowMoments, [B, Hkv, 1, G * R, 1], normalised by the final LSE; top: the largest
        score [.., 1]."""
        assert self._p2 is not None
        assert self._k_norm is not None
        assert self._v_max is not None
        scale = _weight(top, lse)
        terms = self._q_norm * self._k_norm
        largest = terms if self._score_max is None else self._score_max
        v_max = (self._v_max * self._case.v_scale).expand_as(scale)
        return [mass, self._p2 * (scale * scale), scale, largest, terms, v_max]

    def vectors(self, top: Tensor, lse: Tensor) -> list[Tensor]:
        """pv2, p2v, p2v2, fp32 [B, Hkv, 1, G * R, dv]."""
        assert self.linear is not None
        assert self._square is not None
        scale, v_scale, dim = _weight(top, lse), self._case.v_scale, self._case.head_dim_vo
        # In fp64: the scale of a row beside a large sink does not fit fp32.
        squares = self._square * (scale * scale)
        return [
            (self.linear * (scale * v_scale**2)).float(),
            (squares[..., :dim] * v_scale).float(),
            (squares[..., dim:] * v_scale**2).float(),
        ]


def grown(old: Tensor | None, keep: Tensor | None, new: Tensor) -> Tensor:
    """old * keep + new, for sums that begin with their first chunk."""
    return new if old is None or keep is None else torch.addcmul(new, old, keep)


def summed(x: Tensor) -> Tensor:
    """Over the splits of a chunk, dimension 2."""
    return x if x.shape[2] == 1 else x.sum(2, keepdim=True)


def _larger(old: Tensor | None, new: Tensor) -> Tensor:
    return new if old is None else torch.maximum(old, new)


def _weight(top: Tensor, lse: Tensor) -> Tensor:
    """The weight of the largest score; 0 where there is none."""
    return torch.exp(top - lse).nan_to_num(0.0)
