"""Second moments of the attention weights, gathered in golden attention's own pass.

With p_k the exact weight of key k and o = sum p_k v_k the exact row, the error bounds need
sum p_k^2 (v_k - o)^2 and sum p_k |v_k - o|. The first expands into sums of p^2, p^2 v and p^2 v^2;
the second is bounded by Cauchy-Schwarz from sum p v^2. All are matrix products beside P @ V; they
run in fp32, and `CANCELLATION` covers what the expansion loses by that.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cases.schema import AttentionCase

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

    def squared_spread(self, out: Tensor) -> Tensor:
        """An upper bound of sum p^2 (v - out)^2, fp64 [total_q, Hq, Dvo]."""
        return _expanded(self.p2v2.double(), self.p2v.double(), self.p2[..., None], out)

    def spread(self, out: Tensor) -> Tensor:
        """An upper bound of sum p |v - out|: sqrt(mass * sum p (v - out)^2)."""
        # Beside a sink, sum p v is still `out`: the sink's value is 0.
        variance = _expanded(self.pv2.double(), out, self.mass[..., None], out)
        return (self.mass[..., None] * variance).sqrt()

    def magnitude(self) -> Tensor:
        """An upper bound of sum p |v|."""
        return (self.mass[..., None] * self.pv2.double() * (1 + CANCELLATION)).sqrt()


def _expanded(second: Tensor, first: Tensor, zeroth: Tensor, centre: Tensor) -> Tensor:
    """sum w (v - c)^2 = second - 2 c first + c^2 zeroth, and what rounding may have taken from it."""
    cross, square = 2 * centre * first, centre * centre * zeroth
    slack = CANCELLATION * (second + cross.abs() + square)
    return (second - cross + square).clamp(min=0) + slack


class MomentSums:
    """Running sums for some rows of one request, in the layout [Hkv, group, rows, ...] of the golden pass."""

    def __init__(self, case: AttentionCase, q: Tensor, rows: int) -> None:
        hkv, group, dim = case.num_kv_heads, case.group_size, case.head_dim_vo
        self._case = case
        norms = q.double().norm(dim=-1).view(rows, hkv, group).permute(1, 2, 0)
        self._q_norm = norms * (case.scale * case.k_scale)

        def zeros(*inner: int, dtype: torch.dtype = torch.float64) -> Tensor:
            return torch.zeros((hkv, group, rows, *inner), dtype=dtype, device=q.device)

        self._p2, self._score_max, self._k_norm, self._v_max = zeros(1), zeros(), zeros(), zeros()
        self._linear = zeros(dim, dtype=torch.float32)
        self._square = zeros(2 * dim, dtype=torch.float32)

    def add(self, p: Tensor, keep: Tensor, s: Tensor, k: Tensor, v: Tensor) -> None:
        """One chunk of keys: weights p [.., rows, keys], earlier sums shrink by keep [.., rows, 1];
        capped scores s (-inf where masked), k [keys, Hkv, d], v [keys, Hkv, dv]."""
        v32 = v.float().permute(1, 0, 2)[:, None]
        squares = v32 * v32
        p32 = p.float()
        shrink = keep.float()
        self._linear = self._linear * shrink + torch.matmul(p32, squares)
        p_squared = p32 * p32
        both = torch.cat([v32, squares], -1)
        self._square = self._square * (shrink * shrink) + torch.matmul(p_squared, both)
        self._p2 = self._p2 * keep * keep + p_squared.sum(-1, keepdim=True, dtype=torch.float64)
        self._k_norm = torch.maximum(self._k_norm, _head_max(k.double().norm(dim=-1)))
        self._v_max = torch.maximum(self._v_max, _head_max(v.double().abs().amax(-1)))
        if self._case.logits_soft_cap is not None:
            self._score_max = torch.maximum(self._score_max, s.masked_fill(s == -torch.inf, 0.0).abs().amax(-1))

    def finish(self, top: Tensor, lse: Tensor, mass: Tensor, leg: Tensor) -> RowMoments:
        """Normalise by the final LSE; `top` is the largest score, `leg` already normalised and scaled."""
        scale = torch.exp(top - lse).nan_to_num(0.0)
        v_scale = self._case.v_scale
        terms = self._q_norm * self._k_norm
        pv2 = self._linear.double() * scale * v_scale**2
        squares = self._square.double() * scale * scale
        p2v, p2v2 = squares.chunk(2, -1)
        return RowMoments(
            mass=_rows(mass)[..., 0],
            p2=_rows(self._p2 * scale * scale)[..., 0],
            p_max=_rows(scale)[..., 0],
            score_max=_rows((terms if self._case.logits_soft_cap is None else self._score_max)[..., None])[..., 0],
            score_terms=_rows(terms[..., None])[..., 0],
            v_max=_rows(self._v_max[..., None])[..., 0] * v_scale,
            pv2=_rows(pv2).float(),
            p2v=_rows(p2v * v_scale).float(),
            p2v2=_rows(p2v2 * v_scale**2).float(),
            leg=_rows(leg),
        )


def _head_max(per_key: Tensor) -> Tensor:
    """[keys, Hkv] to [Hkv, 1, 1]"""
    return per_key.amax(0)[:, None, None]


def _rows(x: Tensor) -> Tensor:
    """[Hkv, group, rows, n] to [rows, Hq, n]"""
    return x.permute(2, 0, 1, 3).reshape(x.shape[2], -1, x.shape[3])


def concatenate(parts: list[RowMoments]) -> RowMoments:
    names = RowMoments.__dataclass_fields__
    return RowMoments(**{name: torch.cat([getattr(part, name) for part in parts]) for name in names})
