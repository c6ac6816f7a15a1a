"""The hashes of cases/counter_hash.py on a CPU, in NumPy's unsigned integers.

They have a logical shift and a vectorised 64-bit product, which torch's signed ones have not: the same bits in half
the time. counter_hash remains the definition.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cases.ragged import Ints, before

CHUNK = 1 << 15  # numbers at a time: two buffers of 256 KiB stay in a core's own cache
_STEP = np.uint64(0x9E3779B97F4A7C15)
_ROUNDS = ((np.uint64(30), np.uint64(0xBF58476D1CE4E5B9)), (np.uint64(27), np.uint64(0x94D049BB133111EB)))
_LAST = np.uint64(31)
_LANES = np.uint64(0x0000FFFF0000FFFF)
_LOW, _16, _32, _63 = np.uint64(0xFFFFFFFF), np.uint64(16), np.uint64(32), np.uint64(63)
Words = NDArray[np.uint64]


def draw(rows: Tensor, columns: int, kind: str, mean: int, factor: float) -> Tensor:
    """float32 [n, columns] of counter_hash.normal ("normal": (sum of lanes - mean) * factor) or signs ("signs").

    rows: int64 [n] row keys on the CPU.
    """
    out = torch.empty((rows.numel(), columns), dtype=torch.float32)
    if not out.numel():
        return out
    numbers = out.numpy()
    keys = rows.contiguous().numpy().view(np.uint64)
    counter = np.arange(1, columns + 1, dtype=np.uint64) * _STEP
    step = min(keys.size, max(1, CHUNK // columns))
    held = np.empty((2, step, columns), dtype=np.uint64)
    scale = np.float32(factor)
    for start in range(0, keys.size, step):
        part = keys[start : start + step, None]
        x, scratch = held[:, : part.shape[0]]
        _bits(part, counter, x, scratch)
        into = numbers[start : start + step]
        if kind == "normal":
            _sum_of_lanes(x, scratch)
            signed = x.view(np.int64)
            np.subtract(signed, mean, out=signed)
            np.copyto(into, signed, casting="unsafe")
            np.multiply(into, scale, out=into)
        else:
            np.right_shift(x, _63, out=x)
            np.copyto(into, x, casting="unsafe")
            np.multiply(into, np.float32(-2), out=into)
            np.add(into, np.float32(1), out=into)
    return out


def row_keys(stream: int, request: Tensor, position: Tensor) -> Tensor:
    """counter_hash.row_keys of int64 [n] on the CPU."""
    x = request.contiguous().numpy().view(np.uint64) * _STEP
    x += np.uint64(stream & 0xFFFFFFFFFFFFFFFF)
    scratch = np.empty_like(x)
    _mix(x, scratch)
    x += position.contiguous().numpy().view(np.uint64) * _STEP
    _mix(x, scratch)
    return torch.from_numpy(x.view(np.int64))


def packed_row_keys(lengths: Ints, first: Ints, numbers: Ints, streams: Ints) -> Ints:
    """counter_hash.row_keys of packed rows, int64 [sum(lengths)]: the arguments of hash_kernels.packed_row_keys."""
    of_request = numbers.view(np.uint64) * _STEP + streams.view(np.uint64)
    _mix(of_request, np.empty_like(of_request))
    of_request += (first - before(lengths)).view(np.uint64) * _STEP
    x = np.repeat(of_request, lengths)
    scratch = np.arange(x.size, dtype=np.uint64)
    scratch *= _STEP
    x += scratch
    _mix(x, scratch)
    return x.view(np.int64)


def _bits(rows: Words, counter: Words, x: Words, scratch: Words) -> None:
    """x = SplitMix64's finaliser of rows + counter."""
    np.add(rows, counter, out=x)
    _mix(x, scratch)


def _mix(x: Words, scratch: Words) -> None:
    """SplitMix64's finaliser, in place."""
    for shift, factor in _ROUNDS:
        np.right_shift(x, shift, out=scratch)
        np.bitwise_xor(x, scratch, out=x)
        np.multiply(x, factor, out=x)
    np.right_shift(x, _LAST, out=scratch)
    np.bitwise_xor(x, scratch, out=x)


def _sum_of_lanes(x: Words, scratch: Words) -> None:
    """x = the sum of its four 16-bit lanes, two at a time."""
    np.right_shift(x, _16, out=scratch)
    np.bitwise_and(scratch, _LANES, out=scratch)
    np.bitwise_and(x, _LANES, out=x)
    np.add(x, scratch, out=x)
    np.right_shift(x, _32, out=scratch)
    np.bitwise_and(x, _LOW, out=x)
    np.add(x, scratch, out=x)
