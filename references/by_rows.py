"""Elementwise arithmetic over an output, a few rows at a time where that is faster."""

from __future__ import annotations

from torch import Tensor

CPU_ELEMENTS = 1 << 15  # worked on at a time on a CPU: its cache then holds a dozen fp64 arrays of them


def row_slices(out: Tensor) -> list[slice]:
    """Slices of dimension 0 of `out` [total_q, num_qo_heads, head_dim_vo]; a single one but on a CPU."""
    count = out.shape[0]
    step = count if out.device.type != "cpu" else max(1, CPU_ELEMENTS // max(1, out[:1].numel()))
    return [slice(at, at + step) for at in range(0, count, max(1, step))]
