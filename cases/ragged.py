"""Index arithmetic for packed (ragged) rows: which request and position each row belongs to."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from cases.schema import AttentionCase


class Rows(NamedTuple):
    """Packed rows: `request` and absolute `position` of each, both int64 [n]."""

    request: Tensor
    position: Tensor


def indptr(lengths: Sequence[int], device: torch.device | str = "cpu", dtype: torch.dtype = torch.int32) -> Tensor:
    """[len(lengths)+1] running sum from 0."""
    running = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(np.array(lengths, dtype=np.int64), out=running[1:])
    return torch.from_numpy(running).to(dtype).to(device, non_blocking=True)


# Rows are computed on the host up to this many: a device would be waited for several times on the way.
ON_HOST = 1 << 17
ALIGNED = 64  # elements: each tensor of one upload begins where a kernel may load 16 bytes at a time


def packed_rows(lengths: Sequence[int], first: Sequence[int], device: torch.device | str) -> Rows:
    """Rows first[i] .. first[i]+lengths[i]-1 of every request i, packed in order. Not to be written to: kept."""
    return _packed_rows(tuple(lengths), tuple(first), str(device))


@functools.lru_cache(maxsize=16)
def _packed_rows(lengths: tuple[int, ...], first: tuple[int, ...], device: str) -> Rows:
    # Kept, because one case asks for its rows a dozen times. In NumPy, whose small steps cost a fifth of torch's.
    total = sum(lengths)
    if total <= ON_HOST:
        counts = np.array(lengths, dtype=np.int64)
        request = np.repeat(np.arange(len(lengths), dtype=np.int64), counts)
        offset = np.array(first, dtype=np.int64) - (np.cumsum(counts) - counts)
        position = np.arange(total, dtype=np.int64) + offset[request]
        return Rows(*uploaded(device, torch.from_numpy(request), torch.from_numpy(position)))
    many = torch.tensor(lengths, dtype=torch.int64).to(device)
    of_request = torch.repeat_interleave(torch.arange(len(lengths), device=device), many, output_size=total)
    start = torch.cumsum(many, 0) - many
    shift = torch.tensor(first, dtype=torch.int64).to(device) - start
    return Rows(of_request, torch.arange(total, device=device) + shift[of_request])


def uploaded(device: torch.device | str, *parts: Tensor) -> tuple[Tensor, ...]:
    """Flat tensors of one dtype on `device`, by one copy that nothing waits for."""
    if all(part.device == torch.device(device) for part in parts):
        return parts
    starts = [0]
    for part in parts:
        starts.append(starts[-1] + -(-part.numel() // ALIGNED) * ALIGNED)
    # Pinned: a copy of pageable memory waits for what the device was given before.
    to_gpu = torch.device(device).type == "cuda" and parts[0].device.type == "cpu"
    packed = torch.empty(starts[-1], dtype=parts[0].dtype, device=parts[0].device, pin_memory=to_gpu)
    for start, part in zip(starts, parts, strict=False):
        packed[start : start + part.numel()] = part
    packed = packed.to(device, non_blocking=True)
    return tuple(packed[start : start + part.numel()] for start, part in zip(starts, parts, strict=False))


def query_rows(case: AttentionCase, device: torch.device | str) -> Rows:
    """The new rows of a case, [total_q]: positions prefix_len .. prefix_len+extend_len-1."""
    return packed_rows([r.extend_len for r in case.requests], [r.prefix_len for r in case.requests], device)


def kv_rows(case: AttentionCase, device: torch.device | str) -> Rows:
    """All keys of a case, [total_kv]: positions 0 .. kv_len-1."""
    return packed_rows([r.kv_len for r in case.requests], [0] * case.num_requests, device)
