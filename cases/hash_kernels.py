"""Faster ways to the numbers of cases/counter_hash.py, where there are any: NumPy on a CPU, one Triton kernel on a GPU.

In torch a number takes about forty passes over 64-bit integers; drawing a case then costs a GPU more than
running it. The kernels do the same integer operations in registers. counter_hash remains the
definition: what is here is compared with its bits, and without Triton it is used.
"""

from __future__ import annotations

import functools
import importlib
import warnings
from typing import Any

import torch
from torch import Tensor

from cases import hash_numpy

BLOCK = 1024


# Four 16-bit uniforms: mean 4 * (2^16-1)/2, variance 4 * (2^32-1)/12.
SUM_OF_FOUR_MEAN = 2 * (2**16 - 1)
SUM_OF_FOUR_FACTOR = 1 / ((2**32 - 1) / 3) ** 0.5


def fast(kind: str, rows: Tensor, columns: int) -> Tensor | None:
    """float32 [n, columns] of counter_hash.normal ("normal") or signs ("signs"), or None where there is no faster way.

    rows: int64 [n] row keys.
    """
    if rows.device.type == "cpu":
        return hash_numpy.draw(rows, columns, kind, SUM_OF_FOUR_MEAN, SUM_OF_FOUR_FACTOR)
    found = kernels() if rows.device.type == "cuda" else None
    if found is None:
        return None
    out = torch.empty((rows.numel(), columns), dtype=torch.float32, device=rows.device)
    if out.numel():
        grid = (-(-out.numel() // BLOCK),)
        found.draw[grid](rows.contiguous(), out, out.numel(), columns, kind == "normal", BLOCK)
    return out


def fast_row_keys(stream: int, request: Tensor, position: Tensor) -> Tensor | None:
    """counter_hash.row_keys, or None where there is no faster way."""
    if request.shape != position.shape or request.dtype is not torch.int64 or position.dtype is not torch.int64:
        return None
    if request.device.type == "cpu":
        return hash_numpy.row_keys(stream, request, position)
    found = kernels() if request.device.type == "cuda" else None
    if found is None:
        return None
    out = torch.empty(request.shape, dtype=torch.int64, device=request.device)
    if out.numel():
        grid = (-(-out.numel() // BLOCK),)
        found.row_keys[grid](request.contiguous(), position.contiguous(), out, stream, out.numel(), BLOCK)
    return out


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
        hash_triton.draw[(1,)](rows, out, 1, 1, True, BLOCK)
    except Exception as problem:  # whatever Triton's toolchain raises; the torch path gives the same bits
        warnings.warn(f"drawing without fused kernels: {type(problem).__name__}: {problem}", stacklevel=2)
        return False
    return True
