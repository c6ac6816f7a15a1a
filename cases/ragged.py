"""Index arithmetic for packed (ragged) rows: which request and position each row belongs to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from cases.schema import AttentionCase


class Rows(NamedTuple):
    """Packed rows: `request` and absolute `position` of each, both int64 [n]."""

    request: Tensor
    position: Tensor


def indptr(lengths: Sequence[int], device: torch.device | str = "cpu", dtype: torch.dtype = torch.int32) -> Tensor:
    """[len(lengths)+1] running sum from 0."""
    running = torch.zeros(len(lengths) + 1, dtype=torch.int64)
    running[1:] = torch.cumsum(torch.tensor(lengths, dtype=torch.int64), 0)
    return running.to(device=device, dtype=dtype)


def packed_rows(lengths: Sequence[int], first: Sequence[int], device: torch.device | str) -> Rows:
    """Rows first[i] .. first[i]+lengths[i]-1 of every request i, packed in order."""
    counts = torch.tensor(lengths, dtype=torch.int64, device=device)
    request = torch.repeat_interleave(torch.arange(len(lengths), device=device), counts)
    start = torch.cumsum(counts, 0) - counts
    offset = torch.tensor(first, dtype=torch.int64, device=device) - start
    return Rows(request, torch.arange(request.numel(), device=device) + offset[request])


def query_rows(case: AttentionCase, device: torch.device | str) -> Rows:
    """The new rows of a case, [total_q]: positions prefix_len .. prefix_len+extend_len-1."""
    return packed_rows([r.extend_len for r in case.requests], [r.prefix_len for r in case.requests], device)


def kv_rows(case: AttentionCase, device: torch.device | str) -> Rows:
    """All keys of a case, [total_kv]: positions 0 .. kv_len-1."""
    return packed_rows([r.kv_len for r in case.requests], [0] * case.num_requests, device)
