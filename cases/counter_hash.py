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
    hashed = hash_kernels.fused_row_keys(key, request, position)
    return mix(mix(request * _STEP + key) + position * _STEP) if hashed is None else hashed


def bits(rows: Tensor, columns: int) -> Tensor:
    """int64 [n, columns] of 64 random bits for row keys [n]."""
    counter = torch.arange(1, columns + 1, dtype=torch.int64, device=rows.device) * _STEP
    return mix(rows[:, None] + counter)


# Four 16-bit uniforms: mean 4 * (2^16-1)/2, variance 4 * (2^32-1)/12.
_SUM_OF_FOUR_MEAN = 2 * (2**16 - 1)
_SUM_OF_FOUR_STD = ((2**32 - 1) / 3) ** 0.5


# Elements hashed at a time. On a CPU the int64 intermediates then stay in its cache (18 times faster
# than in one piece, measured on 4200 rows of 1024); elsewhere it only bounds memory.
_CHUNK = {"cpu": 1 << 16}
_CHUNK_ELSEWHERE = 1 << 25


def _by_chunks(rows: Tensor, columns: int, finish: Callable[[Tensor, Tensor], Tensor], dtype: torch.dtype) -> Tensor:
    """finish(bits, scratch) for a slice of the rows at a time: each number depends on its place alone.

    `finish` may write to both, int64 [slice, columns]. The steps are those of `bits`, in place: allocating costs a
    third of the time.
    """
    chunk = _CHUNK.get(rows.device.type, _CHUNK_ELSEWHERE)
    step = max(1, min(rows.numel(), chunk // max(1, columns)))
    out = torch.empty((rows.numel(), columns), dtype=dtype, device=rows.device)
    counter = torch.arange(1, columns + 1, dtype=torch.int64, device=rows.device) * _STEP
    held = torch.empty((2, step, columns), dtype=torch.int64, device=rows.device)
    for start in range(0, rows.numel(), step):
        part = rows[start : start + step, None]
        x, scratch = held[:, : part.shape[0]]
        torch.add(part, counter, out=x)
        for shift, factor in ((30, _MUL1), (27, _MUL2), (31, 1)):
            torch.bitwise_right_shift(x, shift, out=scratch)
            scratch &= (1 << (64 - shift)) - 1  # the logical shift, as in _xor_shift
            x ^= scratch
            if factor != 1:
                x *= factor
        out[start : start + step] = finish(x, scratch)
    return out


_EVEN_LANES = 0x0000FFFF0000FFFF


def _normal(x: Tensor, scratch: Tensor) -> Tensor:
    torch.bitwise_right_shift(x, 16, out=scratch)
    scratch &= _EVEN_LANES
    x &= _EVEN_LANES
    x += scratch  # two sums of two, 32 bits apart
    torch.bitwise_right_shift(x, 32, out=scratch)
    x &= 0xFFFFFFFF
    x += scratch
    x -= _SUM_OF_FOUR_MEAN
    return x.to(torch.float32).mul_(1 / _SUM_OF_FOUR_STD)


def normal(rows: Tensor, columns: int) -> Tensor:
    """float32 [n, columns], mean 0 and variance 1: the sum of four 16-bit uniforms (|x| < 3.47).

    The sum is an exact integer and the product rounds once, so it is the same everywhere; a division
    would not be: CUDA multiplies by the reciprocal where a CPU divides.
    """
    drawn = hash_kernels.fused("normal", rows, columns)
    return _by_chunks(rows, columns, _normal, torch.float32) if drawn is None else drawn


def _signs(x: Tensor, _scratch: Tensor) -> Tensor:
    return x.bitwise_right_shift_(63).mul_(2).add_(1)


def signs(rows: Tensor, columns: int) -> Tensor:
    """int64 [n, columns] of independent +1 and -1."""
    drawn = hash_kernels.fused("signs", rows, columns)
    return _by_chunks(rows, columns, _signs, torch.int64) if drawn is None else drawn.long()
