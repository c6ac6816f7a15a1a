"""Golden attention: fp64, on the case's own low-precision inputs, batched over requests, keys streamed in chunks.

    s_k = scale * <q, k> * k_scale            natural logits
    s_k = cap * tanh(s_k / cap)               if there is a softcap (before the mask)
    out = sum_k exp(s_k) v_k * v_scale / Z    over the visible keys
    Z   = sum_k exp(s_k) + exp(sink)          LSE = ln Z

Query head h reads kv head h // group_size. A row with no visible key has out 0; its LSE is -inf,
or the sink if there is one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from cases.recipes import LogicalData
from cases.schema import AttentionCase
from references.by_rows import row_slices
from references.fused_passes import passes_on
from references.moments import MomentSums, RowMoments, grown, row_moments, summed
from references.passes import LOWEST, Chunk
from references.tiles import Bucket, BucketIndex, Plan, make_plan

CHUNK_SCORES = 1 << 28  # scores in flight: 2 GiB of fp64, two such arrays
BYTES_PER_SCORE = 1 << 9  # at most one score in flight for so many bytes that a GPU has
SPLIT_KEYS = 1024  # of one product on a GPU: few rows times very many keys would keep few of its cores busy
CPU_CHUNK_SCORES = 1 << 19  # on a CPU a chunk that stays in its caches is faster


@dataclass(frozen=True, slots=True)
class GoldenOutput:
    """out: fp64 [total_q, num_qo_heads, head_dim_vo]; lse: fp64 [total_q, num_qo_heads], natural,
    the sink included where there is one; moments: what error bounds need, if asked for."""

    out: Tensor
    lse: Tensor
    moments: RowMoments | None = None

    @staticmethod
    def joined(parts: Sequence[GoldenOutput]) -> GoldenOutput:
        """Of the rows of all parts, which have moments or have none."""
        if len(parts) == 1:
            return parts[0]
        moments = [part.moments for part in parts if part.moments is not None]
        out, lse = (torch.cat([getattr(part, name) for part in parts]) for name in ("out", "lse"))
        return GoldenOutput(out, lse, RowMoments.joined(moments) if moments else None)


def golden_attention(
    case: AttentionCase, data: LogicalData, *, moments: bool = False, plan: Plan | None = None
) -> GoldenOutput:
    """The exact answer of `case` on `data`, up to fp64 rounding. `moments` cost about as much again; `plan`: what
    `plan_golden` made for the same `case`, device and `moments`.

    No value is read back from the device, so that its queue never runs dry.
    """
    device = data.q.device
    most = _most_scores(device)
    plan = plan_golden(case, device, moments=moments) if plan is None else plan
    indices, place = plan.on(device, case.num_qo_heads)
    scaled = replace(data, q=data.q.double() * (case.scale * case.k_scale))
    parts = [_bucket(case, scaled, *each, most, moments) for each in zip(plan.buckets, indices, strict=True)]
    sums = _Sums.joined(parts)
    q_norm = scaled.q.norm(dim=-1, keepdim=True) if moments else None
    return GoldenOutput.joined(
        [
            _finished(case, data.sinks, sums.at(place[at]), None if q_norm is None else q_norm[at])
            for at in row_slices(scaled.q)
        ]
    )


def plan_golden(case: AttentionCase, device: torch.device, *, moments: bool = False) -> Plan:
    """The host's part of golden attention, which a caller may do while the device is at something else."""
    return make_plan(case, split_legs=moments, most_scores=_most_scores(device), device=device.type)


def _most_scores(device: torch.device) -> int:
    if device.type != "cuda":
        return min(CHUNK_SCORES, CPU_CHUNK_SCORES)
    return min(CHUNK_SCORES, torch.cuda.get_device_properties(device).total_memory // BYTES_PER_SCORE)


def scores(case: AttentionCase, q: Tensor, k: Tensor) -> Tensor:
    """fp64 [num_kv_heads, group_size, rows, keys] capped logits of q [rows, Hq, d] and k [keys, Hkv, d]."""
    grouped = q.double().view(q.shape[0], case.num_kv_heads, case.group_size, -1).permute(1, 2, 0, 3)
    return _capped(case, torch.matmul(grouped, k.double().permute(1, 2, 0)[:, None]) * (case.scale * case.k_scale))


def _capped(case: AttentionCase, s: Tensor) -> Tensor:
    cap = case.logits_soft_cap
    return s if cap is None else cap * torch.tanh(s / cap)


class _Sums(NamedTuple):
    """What the keys of a row add up to, weights being exp(s - the row's largest score); ... are the rows.

    scalars: fp64 [..., 3 or more]: largest score, sum of weights of the prefix and of the new keys, those of MomentSums
    leg, rest: fp64 [..., dv], or [..., 2 dv] where p @ v^2 is made in one product with p @ v: of prefix and new keys
    linear, square: p @ v^2 if not there, and p^2 @ [v, v^2]; None without moments
    """

    scalars: Tensor
    leg: Tensor
    rest: Tensor
    linear: Tensor | None
    square: Tensor | None

    def of(self, change: Callable[[Tensor], Tensor]) -> _Sums:
        """Every tensor changed in the same way."""
        optional = (None if each is None else change(each) for each in (self.linear, self.square))
        return _Sums(change(self.scalars), change(self.leg), change(self.rest), *optional)

    def at(self, place: Tensor) -> _Sums:
        """The rows at int64 places, of any shape."""
        return self.of(lambda each: each[place])

    @staticmethod
    def joined(parts: Sequence[_Sums]) -> _Sums:
        """The rows of all parts, one after another."""
        if len(parts) == 1:
            return parts[0]
        scalars, leg, rest, linear, square = zip(*parts, strict=True)
        optional = (None if each[0] is None else torch.cat(each) for each in (linear, square))
        return _Sums(torch.cat(scalars), torch.cat(leg), torch.cat(rest), *optional)


def _bucket(
    case: AttentionCase, data: LogicalData, bucket: Bucket, index: BucketIndex, most: int, moments: bool
) -> _Sums:
    """Of a bucket's padded rows [B * Hq * R], keys streamed; data.q: fp64, scaled."""
    batch, rows = index.rows.shape
    hkv, group = case.num_kv_heads, case.group_size
    # [B, Hkv, 1, G * R, d]: the heads of a group and the rows of a tile meet the same keys.
    q = data.q[index.rows].view(batch, rows, hkv, group, -1).permute(0, 2, 3, 1, 4)
    q = q.reshape(batch, hkv, 1, group * rows, -1)
    split = SPLIT_KEYS if on_gpu(q.device) else None
    fused = moments and on_gpu(q.device)  # p @ [v, v^2] as one product, p^2 in fp64
    passes = passes_on(q.device)
    running = MomentSums() if moments else None
    top = keep = leg = rest = None
    for begin, end in bucket.chunks(_most_columns(case, batch, rows, most, fused), split):
        chunk = Chunk(bucket, index, begin, end, bucket.splits(begin, end, split))
        keys = passes.gather(chunk, data, squares=fused, sizes=moments)
        k, values = (each.view(batch, hkv, chunk.splits, -1, each.shape[-1]) for each in (keys.k, keys.values))
        s = _capped(case, torch.matmul(q, k.transpose(-2, -1)))
        peaks = passes.peaks(s, chunk, sizes=moments and case.logits_soft_cap is not None)
        if top is None:
            top = peaks.top
        else:
            before, top = top, torch.maximum(top, peaks.top)
            keep = torch.exp(before - top.clamp(min=LOWEST))  # what earlier sums shrink by
        w = passes.weigh(s, top, chunk, squares=fused)
        leg = _grown(leg, keep, _weighted(w.p[..., : chunk.cut], values[..., : chunk.cut, :], w.leg))
        rest = _grown(rest, keep, _weighted(w.p[..., chunk.cut :], values[..., chunk.cut :, :], w.rest))
        if running is not None:
            running.add(w, keep, keys, values, peaks.size)
    assert top is not None
    assert leg is not None
    assert rest is not None
    of_moments: list[Tensor] = []
    linear = square = None
    if running is not None:
        of_moments, linear, square = running.found(top)
    scalars = torch.cat([top, leg[1], rest[1], *of_moments], -1)
    return _Sums(scalars, leg[0], rest[0], linear, square).of(lambda each: each.flatten(0, 3))


def _most_columns(case: AttentionCase, batch: int, rows: int, most: int, fused: bool) -> int:
    """Of a chunk: with at most `most` scores, and on a GPU four times as many gathered numbers, which are more where
    tiles have few rows."""
    gathered = case.num_kv_heads * (case.head_dim_qk + 2 * case.head_dim_vo) // 4 if fused else 0
    return max(1, most // (batch * max(rows * case.num_qo_heads, gathered)))


def _weighted(p: Tensor, values: Tensor, total: Tensor | None) -> tuple[Tensor, Tensor]:
    """sum p values over the keys of all splits [B, Hkv, 1, G * R, dv], and sum p."""
    if total is None:
        both = summed(torch.matmul(p, torch.nn.functional.pad(values, (0, 1), value=1.0)))
        return both[..., :-1], both[..., -1:]
    return summed(torch.matmul(p, values)), summed(total)


def _grown(old: tuple[Tensor, Tensor] | None, keep: Tensor | None, new: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    return new if old is None else (grown(old[0], keep, new[0]), grown(old[1], keep, new[1]))


def _finished(case: AttentionCase, sinks: Tensor | None, sums: _Sums, q_norm: Tensor | None) -> GoldenOutput:
    """Of rows [total_q, Hq, ..]: divided by their total. q_norm [total_q, Hq, 1]: |q|, scaled, if moments are asked
    for."""
    top, of_leg, of_rest, *of_moments = torch.split(sums.scalars, 1, -1)
    total = of_leg + of_rest
    lse = top + torch.log(total)
    mass = (total > 0).double()
    if sinks is not None:
        with_sink = torch.logaddexp(lse, sinks.double()[:, None])
        mass = torch.exp(lse - with_sink).nan_to_num(0.0)
        lse = with_sink
    dv = case.head_dim_vo
    weight = torch.where(total > 0, mass / total, 0.0) * case.v_scale
    both = sums.leg + sums.rest
    moments = None
    if q_norm is not None and sums.square is not None:
        moments = row_moments(
            case,
            q_norm,
            of_moments,
            both[..., dv:] if sums.linear is None else sums.linear,
            sums.square,
            mass=mass,
            scale=torch.exp(top - lse).nan_to_num(0.0),  # the weight of the largest score; 0 where there is none
            leg=sums.leg[..., :dv] * weight,
        )
    return GoldenOutput(both[..., :dv] * weight, lse.squeeze(-1), moments)


def on_gpu(device: torch.device) -> bool:
    """Whether to compute as a GPU does it best."""
    return device.type != "cpu"
