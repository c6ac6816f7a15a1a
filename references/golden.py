"""Golden attention: fp64, on the case's own low-precision inputs, batched over requests, keys streamed in chunks.

    s_k = scale * <q, k> * k_scale            natural logits
    s_k = cap * tanh(s_k / cap)               if there is a softcap (before the mask)
    out = sum_k exp(s_k) v_k * v_scale / Z    over the visible keys
    Z   = sum_k exp(s_k) + exp(sink)          LSE = ln Z

Query head h reads kv head h // group_size. A row with no visible key has out 0; its LSE is -inf,
or the sink if there is one.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cases.recipes import LogicalData
from cases.schema import AttentionCase
from references.moments import MomentSums, RowMoments, grown, summed
from references.tiles import Bucket, BucketIndex, Plan, make_plan
from references.visibility import visible_mask
from references.weights import weights

CHUNK_SCORES = 1 << 27  # scores in flight: 1 GiB of fp64, three such arrays
BYTES_PER_SCORE = 1 << 10  # at most one score in flight for so many bytes that a GPU has
SPLIT_KEYS = 1024  # of one product on a GPU: few rows times very many keys would keep few of its cores busy
CPU_CHUNK_SCORES = 1 << 19  # on a CPU a chunk that stays in its caches is faster


@dataclass(frozen=True, slots=True)
class GoldenOutput:
    """out: fp64 [total_q, num_qo_heads, head_dim_vo]; lse: fp64 [total_q, num_qo_heads], natural,
    the sink included where there is one; moments: what error bounds need, if asked for."""

    out: Tensor
    lse: Tensor
    moments: RowMoments | None = None


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
    parts = [_bucket(case, data, *each, most, moments) for each in zip(plan.buckets, indices, strict=True)]
    scalars = _joined([part.scalars for part in parts], place)
    vectors = [_joined(list(each), place) for each in zip(*(part.vectors for part in parts), strict=True)]
    rows = RowMoments(*scalars.unbind(-1)[1:], *vectors[1:]) if moments else None
    return GoldenOutput(vectors[0], scalars[..., 0], rows)


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


def _bucket(
    case: AttentionCase, data: LogicalData, bucket: Bucket, index: BucketIndex, most: int, moments: bool
) -> _Part:
    """lse and out, and the fields of RowMoments (if asked for), of a bucket's padded rows, keys streamed."""
    batch, rows = index.rows.shape
    hkv, group = case.num_kv_heads, case.group_size
    # [B, Hkv, 1, G * R, d]: the heads of a group and the rows of a tile meet the same keys.
    q = data.q[index.rows].double().view(batch, rows, hkv, group, -1).permute(0, 2, 3, 1, 4)
    q = q.reshape(batch, hkv, 1, group * rows, -1) * (case.scale * case.k_scale)
    top = leg = rest = keep = None
    sums = MomentSums(case, q) if moments else None
    split = SPLIT_KEYS if on_gpu(q.device) else None
    fused = moments and on_gpu(q.device)  # p @ [v, v^2] as one product, p^2 in fp64
    for begin, end in bucket.chunks(max(1, most // (batch * rows * case.num_qo_heads)), split):
        gather, key = index.keys(begin, end, bucket.prefix)
        splits = bucket.splits(begin, end, split)
        shape = (batch, hkv, splits, -1)  # and d
        k = _gathered(data.k, gather).view(*shape, case.head_dim_qk)
        values = _gathered(data.v, gather, squares=fused).view(*shape, case.head_dim_vo * (2 if fused else 1))
        s = _capped(case, torch.matmul(q, k.transpose(-2, -1)))
        if not bucket.is_open(begin, end):
            mask = visible_mask(index.first, index.last, key[:, None]).view(batch, rows, splits, -1).transpose(1, 2)
            s.view(batch, hkv, splits, group, rows, -1).masked_fill_(~mask[:, None, :, None], -torch.inf)
        new_top = s.amax((2, 4), keepdim=True)
        if top is not None:
            new_top = torch.maximum(top, new_top)
        shift = new_top.clamp(min=torch.finfo(torch.float64).min)  # a row with no key yet: exp(-inf), not NaN
        if top is not None:
            keep = torch.exp(top - shift)  # what earlier sums shrink by
        top = new_top
        if sums is not None:
            sums.look(s, k, values[..., : case.head_dim_vo])
        cut = min(max(bucket.prefix - begin, 0), end - begin) // splits  # all or none, if there are several
        w = weights(s, shift, cut, squares=fused)
        leg = grown(leg, keep, _weighted(w.p[..., :cut], values[..., :cut, :], w.leg))
        rest = grown(rest, keep, _weighted(w.p[..., cut:], values[..., cut:, :], w.rest))
        if sums is not None:
            sums.add(w, keep, values)
    assert top is not None
    assert leg is not None
    assert rest is not None
    both = leg + rest
    acc, total = both[..., : case.head_dim_vo], both[..., -1:]
    if sums is not None and fused:
        sums.linear = both[..., case.head_dim_vo : -1]
    lse = top + torch.log(total)
    mass = (total > 0).double()
    if data.sinks is not None:
        sinks = data.sinks.double().view(hkv, group, 1).expand(-1, -1, rows).reshape(hkv, 1, group * rows, 1)
        with_sink = torch.logaddexp(lse, sinks)
        mass = torch.exp(lse - with_sink).nan_to_num(0.0)
        lse = with_sink
    weight = torch.where(total > 0, mass / total, 0.0) * case.v_scale
    of_prefix = leg[..., : case.head_dim_vo] * weight
    return _Part(
        scalars=torch.cat([lse, *([] if sums is None else sums.scalars(top, lse, mass))], -1).flatten(0, 3),
        vectors=[
            vector.flatten(0, 3)
            for vector in (acc * weight, *([] if sums is None else [*sums.vectors(top, lse), of_prefix]))
        ],
    )


def on_gpu(device: torch.device) -> bool:
    """Whether to compute as a GPU does it best."""
    return device.type != "cpu"


def _gathered(rows: Tensor, gather: Tensor, *, squares: bool = False) -> Tensor:
    """fp64 [B, heads, keys, d] of rows [n, heads, d], contiguous; with `squares` [.., 2 d], v and v^2."""
    found = rows[gather].transpose(1, 2)
    if not squares:
        return found.to(torch.float64, memory_format=torch.contiguous_format)
    both = torch.empty((*found.shape[:-1], 2 * rows.shape[-1]), dtype=torch.float64, device=rows.device)
    value, square = both.chunk(2, -1)
    value.copy_(found)
    torch.mul(value, value, out=square)
    return both


def _weighted(p: Tensor, values: Tensor, total: Tensor | None) -> Tensor:
    """sum p values over the keys of all splits, and sum p as a last column: [B, Hkv, 1, G * R, dv + 1]."""
    if total is None:
        return summed(torch.matmul(p, torch.nn.functional.pad(values, (0, 1), value=1.0)))
    return summed(torch.cat([torch.matmul(p, values), total], -1))


@dataclass(frozen=True, slots=True)
class _Part:
    """What a bucket gives, a row for each of its B * Hq * R (query head, row): fp64 [n, 1 or 7] and [n, dv] each."""

    scalars: Tensor
    vectors: list[Tensor]


def _joined(parts: list[Tensor], place: Tensor) -> Tensor:
    """Rows [total_q, Hq, ..] out of those of all buckets, one after another."""
    return (parts[0] if len(parts) == 1 else torch.cat(parts))[place]
