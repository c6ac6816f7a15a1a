"""Running sums over many keys, in blocks.

`torch.cumsum` along any dimension but the last walks one key at a time on a GPU, and strides through memory on a
CPU: at 131,072 keys it took most of a certificate's time.
"""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK = 256  # keys; blocks are summed side by side, then their totals
CPU_FROM = 1 << 20  # values: fewer fit a CPU's cache, where strides cost little
GPU_FROM = 4 * BLOCK  # keys


def running_sums(values: Tensor, dtype: torch.dtype) -> Tensor:
    """[lead, n + 1, columns] of `dtype`: sums of the first 0, 1, ... n of values [lead, n, columns]."""
    lead, n, columns = values.shape
    on_cpu = values.device.type == "cpu"
    if (values.numel() < CPU_FROM) if on_cpu else (n < GPU_FROM):
        sums = torch.zeros((lead, n + 1, columns), dtype=dtype, device=values.device)
        torch.cumsum(values, 1, dtype=dtype, out=sums[:, 1:])
        return sums
    blocks = -(-n // BLOCK)
    sums = torch.zeros((lead, 1 + blocks * BLOCK, columns), dtype=dtype, device=values.device)
    sums[:, 1 : n + 1] = values
    by_block = sums.as_strided((lead, blocks, BLOCK, columns), (sums.stride(0), BLOCK * columns, columns, 1), columns)
    if on_cpu:
        for key in range(1, BLOCK):
            by_block[:, :, key] += by_block[:, :, key - 1]
    else:
        by_block.copy_(torch.cumsum(by_block, 2))
    by_block[:, 1:] += torch.cumsum(by_block[:, :-1, -1], 1, dtype=dtype)[:, :, None]
    return sums[:, : n + 1]
