"""Code words: the V rows that make a set of keys readable from its sum.

Random +-1 rows sum to about sqrt(n), and a bf16 output then loses the integer at n of a few hundred.
*Walk-B* codes keep every contiguous sum within B: a free +-1 random walk W_t is folded into [0, B],
f(w) = |w mod 2B - B|, and the code is its step, c_t = f(W_t) - f(W_{t-1}), which is +-1 again. Any
interval then sums to f(W_end) - f(W_begin), at any length, while one key more, one page elsewhere or
one key twice changes the sum in about half of the columns.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cases import counter_hash
from cases.ragged import Rows
from references.certificates.running import running_sums

_WORD = 64


def random_bits(seed: int, stream: str, rows: Rows, columns: int) -> Tensor:
    """int8 [n, columns] of 0 and 1, by logical position; 64 columns cost one hash."""
    return _bits_of(_keys(seed, [stream], rows), columns)[0]


def _keys(seed: int, streams: Sequence[str], rows: Rows) -> Tensor:
    """int64 [streams, n]"""
    keys = [counter_hash.row_keys(counter_hash.stream_key(seed, s), rows.request, rows.position) for s in streams]
    return torch.stack(keys)


def _bits_of(keys: Tensor, columns: int) -> Tensor:
    """int8 [streams, n, columns] of 0 and 1, the lowest bit of a word first."""
    words = counter_hash.bits(keys.flatten(), -(-columns // _WORD))
    octets = words.view(torch.uint8)[:, :, None]  # an eighth of the traffic of unpacking 64-bit words
    unpacked = (octets >> torch.arange(8, dtype=torch.uint8, device=words.device)) & 1
    return unpacked.view(torch.int8).view(*keys.shape, -1)[..., :columns]


def sign_codes(seed: int, stream: str, rows: Rows, heads: int, columns: int) -> Tensor:
    """int8 [n, heads, columns] of independent +1 and -1."""
    return (random_bits(seed, stream, rows, heads * columns) * 2 - 1).view(-1, heads, columns)


def walk_codes(seed: int, stream: str, rows: Rows, columns: int, bound: int, order: Tensor | None = None) -> Tensor:
    """int8 [n, columns] of walk-`bound` codes over packed rows.

    `order` (int64 [n], a permutation) is the order in which the walk visits the rows; a set of rows
    that is contiguous in it sums to at most `bound`, a power of two, in absolute value. None: as packed.
    """
    steps = random_bits(seed, stream, rows, columns) * 2 - 1
    if order is not None:
        steps = steps[order]
    codes = _folded(steps[None], _phases(seed, [stream], rows, columns), bound)[0]
    if order is None:
        return codes
    placed = torch.empty_like(codes)
    placed[order] = codes
    return placed


def walk_codes_by_head(seed: int, stream: str, rows: Rows, heads: int, columns: int, bound: int) -> Tensor:
    """int8 [n, heads, columns]: `walk_codes` of streams "STREAM/0", "STREAM/1", ..., in one pass."""
    streams = [f"{stream}/{head}" for head in range(heads)]
    steps = _bits_of(_keys(seed, streams, rows), columns) * 2 - 1
    return _folded(steps, _phases(seed, streams, rows, columns), bound).transpose(0, 1).contiguous()


def _phases(seed: int, streams: Sequence[str], rows: Rows, columns: int) -> Tensor:
    """int32 [streams, columns]: where the walks begin."""
    origin = Rows(rows.request[:1] * 0, rows.position[:1] * 0)
    phases = _bits_of(_keys(seed, [f"{s}/phase" for s in streams], origin), columns * 8)
    return phases.view(len(streams), columns, 8).sum(-1, dtype=torch.int32)


def _folded(steps: Tensor, phases: Tensor, bound: int) -> Tensor:
    """Codes int8 [streams, n, columns] of steps +-1 of that shape and phases [streams, columns]."""
    walk = running_sums(steps, torch.int32)
    walk += phases[:, None]
    folded = ((walk & (2 * bound - 1)).to(torch.int8) - bound).abs_()  # walk mod 2 * bound, a power of two
    return folded[:, 1:] - folded[:, :-1]
