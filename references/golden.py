"""Golden attention: fp64, on the case's own low-precision inputs, streamed in chunks.

    s_k = scale * <q, k> * k_scale            natural logits
    s_k = cap * tanh(s_k / cap)               if there is a softcap (before the mask)
    out = sum_k exp(s_k) v_k * v_scale / Z    over the visible keys
    Z   = sum_k exp(s_k) + exp(sink)          LSE = ln Z

Query head h reads kv head h // group_size. A row with no visible key has out 0; its LSE is -inf,
or the sink if there is one.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor

from cases.ragged import Rows
from cases.recipes import LogicalData
from cases.schema import AttentionCase
from references.moments import MomentSums, RowMoments, concatenate
from references.visibility import visible_interval, visible_mask

CHUNK_SCORES = 1 << 25  # scores in flight per chunk: 256 MiB of fp64


@dataclass(frozen=True, slots=True)
class GoldenOutput:
    """out: fp64 [total_q, num_qo_heads, head_dim_vo]; lse: fp64 [total_q, num_qo_heads], natural,
    the sink included where there is one; moments: what error bounds need, if asked for."""

    out: Tensor
    lse: Tensor
    moments: RowMoments | None = None


def golden_attention(case: AttentionCase, data: LogicalData, *, moments: bool = False) -> GoldenOutput:
    """The exact answer of `case` on `data`, up to fp64 rounding. `moments` costs about as much again."""
    device = data.q.device
    out = torch.zeros((case.total_q, case.num_qo_heads, case.head_dim_vo), dtype=torch.float64, device=device)
    lse = torch.full((case.total_q, case.num_qo_heads), -torch.inf, dtype=torch.float64, device=device)
    parts: list[RowMoments] = []
    q_start = kv_start = 0
    for i, request in enumerate(case.requests):
        k = data.k[kv_start : kv_start + request.kv_len]
        v = data.v[kv_start : kv_start + request.kv_len]
        rows_per_chunk = max(1, CHUNK_SCORES // max(1, case.num_qo_heads * _keys_per_row(case, request.kv_len)))
        for start in range(0, request.extend_len, rows_per_chunk):
            stop = min(request.extend_len, start + rows_per_chunk)
            at = slice(q_start + start, q_start + stop)
            position = torch.arange(start, stop, device=device) + request.prefix_len
            interval = visible_interval(case, Rows(torch.full_like(position, i), position))
            boundary = request.prefix_len if moments else None
            out[at], lse[at], extra = _chunk(case, data.q[at], k, v, *interval, data.sinks, boundary)
            parts += [] if extra is None else [extra]
        q_start += request.extend_len
        kv_start += request.kv_len
    return GoldenOutput(out, lse, concatenate(parts) if moments else None)


def _keys_per_row(case: AttentionCase, kv_len: int) -> int:
    """Keys that a chunk of rows loads per row, roughly: the window, or all."""
    return kv_len if case.window_left is None else min(kv_len, 2 * case.window_left + 64)


def scores(case: AttentionCase, q: Tensor, k: Tensor) -> Tensor:
    """fp64 [num_kv_heads, group_size, rows, keys] capped logits of q [rows, Hq, d] and k [keys, Hkv, d]."""
    grouped = q.double().view(q.shape[0], case.num_kv_heads, case.group_size, -1).permute(1, 2, 0, 3)
    s = torch.matmul(grouped, k.double().permute(1, 2, 0)[:, None]) * (case.scale * case.k_scale)
    cap = case.logits_soft_cap
    return s if cap is None else cap * torch.tanh(s / cap)


def _chunk(
    case: AttentionCase,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    first: Tensor,
    last: Tensor,
    sinks: Tensor | None,
    boundary: int | None,
) -> tuple[Tensor, Tensor, RowMoments | None]:
    """out [rows, Hq, dv] and lse [rows, Hq] of some rows of one request, keys streamed.

    `boundary`: where leg 1 ends (the prefix length), to gather moments; None: no moments.
    """
    rows, hkv, group = q.shape[0], case.num_kv_heads, case.group_size
    low, high = int(first.min()), int(last.max())
    step = max(1, CHUNK_SCORES // max(1, rows * case.num_qo_heads))
    top = torch.full((hkv, group, rows, 1), -torch.inf, dtype=torch.float64, device=q.device)
    total = torch.zeros_like(top)
    acc = torch.zeros((hkv, group, rows, case.head_dim_vo), dtype=torch.float64, device=q.device)
    sums = None if boundary is None else MomentSums(case, q, rows)
    leg = acc
    for begin, end in _key_chunks(low, high, step, boundary):
        mask = visible_mask(first, last, torch.arange(begin, end, device=q.device))
        s = scores(case, q, k[begin:end]).masked_fill(~mask, -torch.inf)
        new_top = torch.maximum(top, s.amax(-1, keepdim=True))
        shift = new_top.clamp(min=torch.finfo(torch.float64).min)  # a row with no key yet: exp(-inf), not NaN
        p = torch.exp(s - shift)
        keep = torch.exp(top - shift)
        total = total * keep + p.sum(-1, keepdim=True)
        if sums is not None:
            sums.add(p, keep, s, k[begin:end], v[begin:end])
            leg = leg * keep
        acc = acc * keep + torch.matmul(p, v[begin:end].double().permute(1, 0, 2)[:, None])
        if boundary is not None and end <= boundary:
            leg = acc
        top = new_top
    lse = top + torch.log(total)
    mass = (total > 0).double()
    if sinks is not None:
        with_sink = torch.logaddexp(lse, sinks.double().view(hkv, group, 1, 1))
        mass = torch.exp(lse - with_sink).nan_to_num(0.0)
        lse = with_sink
    weight = torch.where(total > 0, mass / total, torch.zeros_like(total)) * case.v_scale
    extra = None if sums is None else sums.finish(top, lse, mass, leg * weight)
    out = (acc * weight).permute(2, 0, 1, 3).reshape(rows, case.num_qo_heads, -1)
    return out, lse.permute(2, 0, 1, 3).reshape(rows, case.num_qo_heads), extra


def _key_chunks(low: int, high: int, step: int, boundary: int | None) -> list[tuple[int, int]]:
    """Ranges of at most `step` keys that cover low..high and do not straddle `boundary`."""
    cuts = [low, high] if boundary is None or not low < boundary < high else [low, boundary, high]
    return [
        (begin, min(stop, begin + step))
        for start, stop in itertools.pairwise(cuts)
        for begin in range(start, stop, step)
    ]
