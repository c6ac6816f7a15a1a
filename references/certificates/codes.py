"""Code words: the V rows that make a set of keys readable from its sum.

Random +-1 rows sum to about sqrt(n), and a bf16 output then loses the integer at n of a few hundred.
*Walk-B* codes keep every contiguous sum within B: a free +-1 random walk W_t is folded into [0, B],
f(w) = |w mod 2B - B|, and the code is its step, c_t = f(W_t) - f(W_{t-1}), which is +-1 again. Any
interval then sums to f(W_end) - f(W_begin), at any length, while one key more, one page elsewhere or
one key twice changes the sum in about half of the columns.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cases import counter_hash
from cases.ragged import Rows

_WORD = 64


def random_bits(seed: int, stream: str, rows: Rows, columns: int) -> Tensor:
    """int8 [n, columns] of 0 and 1, by logical position; 64 columns cost one hash."""
    keys = counter_hash.row_keys(counter_hash.stream_key(seed, stream), rows.request, rows.position)
    words = counter_hash.bits(keys, -(-columns // _WORD))
    shifts = torch.arange(_WORD, device=words.device)
    unpacked = (words[:, :, None] >> shifts).to(torch.int8) & 1
    return unpacked.flatten(1)[:, :columns]


def sign_codes(seed: int, stream: str, rows: Rows, heads: int, columns: int) -> Tensor:
    """int8 [n, heads, columns] of independent +1 and -1."""
    return (random_bits(seed, stream, rows, heads * columns) * 2 - 1).view(-1, heads, columns)


def walk_codes(seed: int, stream: str, rows: Rows, columns: int, bound: int, order: Tensor | None = None) -> Tensor:
    """int8 [n, columns] of walk-`bound` codes over packed rows.

    `order` (int64 [n], a permutation) is the order in which the walk visits the rows; a set of rows
    that is contiguous in it sums to at most `bound` in absolute value. None: as packed.
    """
    steps = random_bits(seed, stream, rows, columns) * 2 - 1
    if order is not None:
        steps = steps[order]
    phase = random_bits(seed, stream + "/phase", Rows(rows.request[:1] * 0, rows.position[:1] * 0), columns * 8)
    phase = phase.view(columns, 8).sum(1, dtype=torch.int32)
    walk = torch.empty((steps.shape[0] + 1, columns), dtype=torch.int32, device=steps.device)
    walk[0] = phase
    torch.cumsum(steps, 0, dtype=torch.int32, out=walk[1:])
    walk[1:] += phase
    folded = (walk.remainder_(2 * bound) - bound).abs_().to(torch.int8)
    codes = folded[1:] - folded[:-1]
    if order is None:
        return codes
    placed = torch.empty_like(codes)
    placed[order] = codes
    return placed
