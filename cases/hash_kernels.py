"""The hashes of cases/counter_hash.py as one GPU kernel each, where Triton is there.

In torch a number takes about forty passes over 64-bit integers; drawing a case then costs a GPU more than
running it. The kernel does the same integer operations in registers. counter_hash remains the
definition: without Triton it is used, and a test on a GPU compares the bits.
"""

from __future__ import annotations

import functools
import warnings
from typing import Any

import torch
from torch import Tensor

BLOCK = 1024


def fused(kind: str, rows: Tensor, columns: int) -> Tensor | None:
    """float32 [n, columns] of counter_hash.normal ("normal") or signs ("signs"), or None where no kernel can be had.

    rows: int64 [n] row keys, on a GPU.
    """
    kernel = _kernel() if rows.device.type == "cuda" else None
    if kernel is None:
        return None
    out = torch.empty((rows.numel(), columns), dtype=torch.float32, device=rows.device)
    if out.numel():
        kernel[(-(-out.numel() // BLOCK),)](rows.contiguous(), out, out.numel(), columns, kind == "normal", BLOCK)
    return out


@functools.cache
def _kernel() -> Any:
    """The compiled kernel, or None: no Triton, or no compiler for its launchers."""
    try:
        from cases.hash_triton import draw
    except ImportError:
        return None
    try:
        rows, out = torch.zeros(1, dtype=torch.int64, device="cuda"), torch.empty(1, device="cuda")
        draw[(1,)](rows, out, 1, 1, True, BLOCK)
    except Exception as problem:  # whatever Triton's toolchain raises; the torch path gives the same bits
        warnings.warn(f"drawing without a fused kernel: {type(problem).__name__}: {problem}", stacklevel=2)
        return None
    return draw
