"""Faster ways to the numbers of cases/counter_hash.py, where there are any: NumPy on a CPU, one Triton kernel on a GPU.

In torch a number takes about forty passes over 64-bit integers; drawing a case then costs a GPU more than
running it. The kernels do the same integer operations in registers. counter_hash remains the
definition: what is here is compared with its bits, and without Triton it is used.
"""

from __future__ import annotations

import functools
import importlib
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cases import hash_numpy
from cases.ragged import Ints, before, uploaded

BLOCK = 1024
MOST_COLUMNS = 256  # of a program: eight rows or more share the loading of their keys
ROUNDED = (torch.float32, torch.bfloat16, torch.float16)  # dtypes that `draw` stores


# Four 16-bit uniforms: mean 4 * (2^16-1)/2, variance 4 * (2^32-1)/12.
SUM_OF_FOUR_MEAN = 2 * (2**16 - 1)
SUM_OF_FOUR_FACTOR = 1 / ((2**32 - 1) / 3) ** 0.5


def on_gpu(device: torch.device) -> bool:
    """Whether Triton's kernels can run there."""
    return device.type == "cuda"


def fast(kind: str, rows: Tensor, columns: int, dtype: torch.dtype = torch.float32) -> Tensor | None:
    """[n, columns] of counter_hash.normal ("normal") or signs ("signs"), or None where there is no faster way.

    rows: int64 [n] row keys.
    """
    if rows.device.type == "cpu":
        return hash_numpy.draw(rows, columns, kind, SUM_OF_FOUR_MEAN, SUM_OF_FOUR_FACTOR).to(dtype)
    found = kernels() if on_gpu(rows.device) else None
    if found is None:
        return None
    return drawn(found, kind, rows, columns, dtype)


def drawn(found: Any, kind: str, rows: Tensor, columns: int, dtype: torch.dtype) -> Tensor:
    """`fast` by the module of kernels. What they do not round themselves, torch does."""
    out = torch.empty((rows.numel(), columns), dtype=dtype if dtype in ROUNDED else torch.float32, device=rows.device)
    if out.numel():
        across = min(MOST_COLUMNS, 1 << (columns - 1).bit_length())
        down = BLOCK // across
        grid = (-(-rows.numel() // down), -(-columns // across))
        found.draw[grid](rows.contiguous(), out, rows.numel(), columns, kind == "normal", down, across)
    return out.to(dtype)


def fast_row_keys(stream: int, request: Tensor, position: Tensor) -> Tensor | None:
    """counter_hash.row_keys, or None where there is no faster way."""
    if request.shape != position.shape or request.dtype is not torch.int64 or position.dtype is not torch.int64:
        return None
    if request.device.type == "cpu":
        return hash_numpy.row_keys(stream, request, position)
    found = kernels() if on_gpu(request.device) else None
    if found is None:
        return None
    out = torch.empty(request.shape, dtype=torch.int64, device=request.device)
    if out.numel():
        grid = (-(-out.numel() // BLOCK),)
        found.row_keys[grid](request.contiguous(), position.contiguous(), out, stream, out.numel(), BLOCK)
    return out


def packed_row_keys(
    lengths: Ints, first: Ints, numbers: Ints, streams: Sequence[Ints], device: torch.device
) -> list[Tensor]:
    """counter_hash.row_keys of packed rows on `device`, [sum(lengths)] for each of the streams.

    Requests have lengths[i] rows each, from position first[i] on; numbers: each request's number in its case; streams:
    its case's stream key. All int64 [requests], on the host.
    """
    found = kernels() if on_gpu(device) else None
    if found is None:
        made = (hash_numpy.packed_row_keys(lengths, first, numbers, stream) for stream in streams)
        return [torch.from_numpy(keys).to(device, non_blocking=True) for keys in made]
    tables = [np.concatenate([before(lengths), first, numbers, stream]) for stream in streams]
    counts, *on_device = uploaded(device, *map(torch.from_numpy, (lengths, *tables)))
    total = int(lengths.sum())
    # Nothing waits for the device, as the size is given.
    request = torch.repeat_interleave(torch.arange(len(lengths), device=device), counts, output_size=total)
    keys = [torch.empty(total, dtype=torch.int64, device=device) for _ in streams]
    for table, out in zip(on_device, keys, strict=True):
        if total:
            found.packed_row_keys[(-(-total // BLOCK),)](request, table, out, total, len(lengths), BLOCK)
    return keys


@functools.cache
def kernels(module: str = "hash_triton") -> Any:
    """A module of Triton kernels in `cases`, or None: no Triton, or no compiler for its launchers."""
    try:
        found = importlib.import_module(f"cases.{module}")
    except ImportError:
        return None
    return found if _triton_works() else None


@functools.cache
def _triton_works() -> bool:
    from cases import hash_triton

    try:
        rows, out = torch.zeros(1, dtype=torch.int64, device="cuda"), torch.empty(1, device="cuda")
        hash_triton.draw[(1,)](rows, out, 1, 1, True, 1, 1)
    except Exception as problem:  # whatever Triton's toolchain raises; the torch path gives the same bits
        warnings.warn(f"drawing without fused kernels: {type(problem).__name__}: {problem}", stacklevel=2)
        return False
    return True
