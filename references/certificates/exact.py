"""The exact integer answer, from the visibility rule alone: prefix sums, no softmax."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from cases.ragged import indptr, query_rows
from cases.schema import AttentionCase
from references.certificates.running import running_sums
from references.visibility import visible_interval

MOST_TERMS = 1 << 24  # summed up at a time: 64 MiB of running sums


class Sums(NamedTuple):
    """code:   int64 [total_q, num_qo_heads, head_dim_vo], sum of weight * code word over the visible keys
    weight: int64 [total_q, num_qo_heads], sum of the weights"""

    code: Tensor
    weight: Tensor


class Intervals(NamedTuple):
    """Visible keys of every query row as indices into the packed keys: int64 [total_q] each.

    The keys of leg 1 (the cached prefix) are begin..middle, those of leg 2 middle..end.
    """

    begin: Tensor
    middle: Tensor
    end: Tensor


def packed_intervals(case: AttentionCase, device: torch.device | str) -> Intervals:
    rows = query_rows(case, device)
    first, last = visible_interval(case, rows)
    start = indptr([r.kv_len for r in case.requests], device, torch.int64)[rows.request]
    prefix = torch.tensor([r.prefix_len for r in case.requests], device=device)[rows.request]
    last = torch.maximum(first, last)
    middle = torch.minimum(torch.maximum(prefix, first), last)
    return Intervals(start + first, start + middle, start + last)


def interval_sums(case: AttentionCase, codes: Tensor, weights: Tensor | None, begin: Tensor, end: Tensor) -> Sums:
    """Sums over packed keys begin..end of each query row.

    codes:   int8 [total_kv, num_kv_heads, head_dim_vo]
    weights: int8 [total_kv, num_qo_heads], or None for 1 everywhere
    """
    rows, group = begin.numel(), case.group_size
    # kv heads at a time: all in one pass, or as many as memory allows.
    step = max(1, MOST_TERMS // max(1, codes[:, :1].numel() * (1 if weights is None else group)))
    parts = []
    for head in range(0, case.num_kv_heads, step):
        terms = codes[:, head : head + step]
        if weights is None:
            sums = _difference(terms, begin, end)[:, :, None].expand(-1, -1, group, -1)
        else:
            of_group = weights[:, head * group : (head + step) * group].reshape(len(weights), -1, group)
            sums = _difference(terms[:, :, None] * of_group[..., None], begin, end)
        parts.append(sums.flatten(1, 2))
    code = parts[0] if len(parts) == 1 else torch.cat(parts, 1)
    if weights is None:
        return Sums(code, (end - begin)[:, None].expand(rows, case.num_qo_heads))
    return Sums(code, _difference(weights, begin, end))


def _difference(values: Tensor, begin: Tensor, end: Tensor) -> Tensor:
    """Sums of values[begin:end], from one running sum over all packed keys."""
    # |value| < 2^7 in int8: below 2^24 keys the running sum fits 32 bits, at half the memory.
    dtype = torch.int32 if values.dtype is torch.int8 and values.shape[0] < 1 << 24 else torch.int64
    running = running_sums(values.flatten(1)[None], dtype)[0]
    return (running[end] - running[begin]).long().view(-1, *values.shape[1:])
