"""Counter-based random numbers in torch integer arithmetic: the same bits on every device.

A library's generator gives other numbers on another device or release, and a case would then no
longer mean one input. Here a number is a hash of *where* it stands (seed, stream, request,
position, column), so it does not depend on page layout, batch order of evaluation, or device.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from cases import hash_kernels
from cases.hash_kernels import SUM_OF_FOUR_FACTOR, SUM_OF_FOUR_MEAN

_MASK64 = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def _signed(value: int) -> int:
    """The int64 with the same 64 bits (torch has no wrapping uint64 arithmetic)."""
    value &= _MASK64
    return value - (1 << 64) if value >> 63 else value


_MUL1 = _signed(0xBF58476D1CE4E5B9)
_MUL2 = _signed(0x94D049BB133111EB)
_STEP = _signed(_GOLDEN)


def _xor_shift(x: Tensor, bits: int) -> Tensor:
    # An int64 shift copies the sign bit; the mask makes it the logical shift of the algorithm.
    return x ^ ((x >> bits) & ((1 << (64 - bits)) - 1))


def mix(x: Tensor) -> Tensor:
    """SplitMix64's finaliser (Steele, Lea, Flood 2014) on int64 tensors, elementwise."""
    x = _xor_shift(x, 30) * _MUL1
    x = _xor_shift(x, 27) * _MUL2
    return _xor_shift(x, 31)


def _mix_int(x: int) -> int:
    x &= _MASK64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK64
    return x ^ (x >> 31)


def stream_key(seed: int, stream: str) -> int:
    """A 64-bit key for one named stream of a seed."""
    key = _mix_int(seed + _GOLDEN)
    for byte in stream.encode():
        key = _mix_int(key ^ (byte + _GOLDEN))
    return _signed(key)


def row_keys(key: int, request: Tensor, position: Tensor) -> Tensor:
    """int64 keys [n] for rows that stand at (request, position); both int64 [n]."""
    hashed = hash_kernels.fast_row_keys(key, request, position)
    return row_keys_defined(key, request, position) if hashed is None else hashed


def row_keys_defined(key: int, request: Tensor, position: Tensor) -> Tensor:
    """The definition of `row_keys`."""
    return mix(mix(request * _STEP + key) + position * _STEP)


def bits(rows: Tensor, columns: int) -> Tensor:
    """int64 [n, columns] of 64 random bits for row keys [n]."""
    counter = torch.arange(1, columns + 1, dtype=torch.int64, device=rows.device) * _STEP
    return mix(rows[:, None] + counter)


# Elements hashed at a time, where none of the faster ways applies: bounds memory.
_CHUNK = 1 << 25


def _by_chunks(rows: Tensor, columns: int, draw: Callable[[Tensor], Tensor]) -> Tensor:
    """draw(bits) for a slice of the rows at a time: each number depends on its place alone."""
    step = max(1, _CHUNK // max(1, columns))
    parts = [draw(bits(rows[start : start + step], columns)) for start in range(0, max(1, rows.numel()), step)]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def normal(rows: Tensor, columns: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """[n, columns], mean 0 and variance 1: the sum of four 16-bit uniforms (|x| < 3.47), float32 rounded to `dtype`.

    The sum is an exact integer and the product rounds once, so it is the same everywhere; a division
    would not be: CUDA multiplies by the reciprocal where a CPU divides.
    """
    drawn = hash_kernels.fast("normal", rows, columns, dtype)
    return _by_chunks(rows, columns, normal_of_bits).to(dtype) if drawn is None else drawn


def normal_of_bits(x: Tensor) -> Tensor:
    """float32 from int64 bits: the definition of `normal`."""
    total = (x & 0xFFFF) + ((x >> 16) & 0xFFFF) + ((x >> 32) & 0xFFFF) + ((x >> 48) & 0xFFFF)
    return (total - SUM_OF_FOUR_MEAN).to(torch.float32) * SUM_OF_FOUR_FACTOR


def signs(rows: Tensor, columns: int) -> Tensor:
    """float32 [n, columns] of independent +1 and -1."""
    drawn = hash_kernels.fast("signs", rows, columns)
    return _by_chunks(rows, columns, signs_of_bits) if drawn is None else drawn


def signs_of_bits(x: Tensor) -> Tensor:
    """float32 from int64 bits: the definition of `signs`, by the highest."""
    return (((x >> 63) << 1) + 1).to(torch.float32)
