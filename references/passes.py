"""The passes that golden attention makes over a chunk of keys: gather them, find the largest score of a row, and turn
scores into weights p = exp(s - largest).

What is written here in torch is the definition. On a GPU, where each of a hundred small steps costs a launch and each
pass over scores takes as long as a product, three Triton kernels do the same (references/passes_triton.py).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from cases.recipes import LogicalData
from references.tiles import Bucket, BucketIndex
from references.visibility import visible_mask

LOWEST = torch.finfo(torch.float64).min


@dataclass(frozen=True)
class Chunk:
    """Columns begin..end of a bucket, computed as `splits` equal parts."""

    bucket: Bucket
    index: BucketIndex
    begin: int
    end: int
    splits: int

    @property
    def cut(self) -> int:
        """How many columns of a part are the cached prefix's: all or none, if there are several parts."""
        return min(max(self.bucket.prefix - self.begin, 0), self.end - self.begin) // self.splits

    @functools.cached_property
    def keys(self) -> tuple[Tensor, Tensor]:
        """Packed keys int64 [B, columns] (padding repeats the tile's first key), and the same with -1 for padding."""
        index, prefix = self.index, self.bucket.prefix
        column = torch.arange(self.begin, self.end, device=index.rows.device)
        key, limit = index.low + column, index.middle
        if self.end > prefix:
            in_new = column >= prefix
            key = torch.where(in_new, index.middle - prefix + column, key)
            limit = torch.where(in_new, index.high, index.middle)
        inside = key < limit
        return torch.where(inside, key, index.low), torch.where(inside, key, -1)


class Keys(NamedTuple):
    """k: fp64 [B, Hkv, columns, d]; values: [.., dv], or with squares [.., 2 dv], v and v^2; k_norm, v_max: [B, Hkv],
    the largest |k| and |v_j|, None if not asked for. Padding repeats a key of the tile."""

    k: Tensor
    values: Tensor
    k_norm: Tensor | None
    v_max: Tensor | None


class Peaks(NamedTuple):
    """top: fp64 [B, Hkv, 1, rows, 1], the largest visible score of a row, -inf where none is; size: the largest |s|
    of those, at least 0, None if not asked for."""

    top: Tensor
    size: Tensor | None


class Weights(NamedTuple):
    """p: fp64 [B, Hkv, splits, rows, columns], 0 where not visible; sums over the columns [B, Hkv, splits, rows, 1]: of
    p before and from the cut between two legs, and of p^2. None: not asked for (p_squared, p2), or left to a product
    with ones (leg, rest)."""

    p: Tensor
    p_squared: Tensor | None = None
    leg: Tensor | None = None
    rest: Tensor | None = None
    p2: Tensor | None = None


class TorchPasses:
    """The definition. It masks the scores in `peaks`."""

    def gather(self, chunk: Chunk, data: LogicalData, *, squares: bool, sizes: bool) -> Keys:
        at, _ = chunk.keys
        k, values = _gathered(data.k, at), _gathered(data.v, at, squares=squares)
        if not sizes:
            return Keys(k, values, None, None)
        v = values[..., : data.v.shape[-1]]
        return Keys(k, values, k.norm(dim=-1).amax(-1), v.abs().amax((2, 3)))

    def peaks(self, s: Tensor, chunk: Chunk, *, sizes: bool) -> Peaks:
        """Of scores s fp64 [B, Hkv, splits, rows, columns], rows being heads of a group times rows of a tile."""
        if not chunk.bucket.is_open(chunk.begin, chunk.end):
            _, key = chunk.keys
            index, batch, of_tile = chunk.index, *chunk.index.rows.shape
            mask = visible_mask(index.first, index.last, key[:, None]).view(batch, of_tile, chunk.splits, -1)
            hidden = ~mask.transpose(1, 2)[:, None, :, None]
            s.view(*s.shape[:3], -1, of_tile, s.shape[-1]).masked_fill_(hidden, -torch.inf)
        top = s.amax((2, 4), keepdim=True)
        if not sizes:
            return Peaks(top, None)
        return Peaks(top, s.masked_fill(s == -torch.inf, 0.0).abs_().amax((2, 4), keepdim=True))

    def weigh(self, s: Tensor, top: Tensor, chunk: Chunk, *, squares: bool) -> Weights:
        """Of scores that went through `peaks`; they are overwritten. top [B, Hkv, 1, rows, 1]: no score is larger."""
        p = s.sub_(top.clamp(min=LOWEST)).exp_()  # a row with no key yet: exp(-inf), not NaN
        if s.device.type == "cpu" and not squares:
            return Weights(p)  # a product adds them up faster
        leg, rest = p[..., : chunk.cut].sum(-1, keepdim=True), p[..., chunk.cut :].sum(-1, keepdim=True)
        if not squares:
            return Weights(p, None, leg, rest)
        p_squared = p * p
        return Weights(p, p_squared, leg, rest, p_squared.sum(-1, keepdim=True))


def _gathered(rows: Tensor, at: Tensor, *, squares: bool = False) -> Tensor:
    """fp64 [B, heads, columns, d] of rows [n, heads, d], contiguous; with `squares` [.., 2 d], v and v^2."""
    found = rows[at].transpose(1, 2)
    if not squares:
        return found.to(torch.float64, memory_format=torch.contiguous_format)
    both = torch.empty((*found.shape[:-1], 2 * rows.shape[-1]), dtype=torch.float64, device=rows.device)
    value, square = both.chunk(2, -1)
    value.copy_(found)
    torch.mul(value, value, out=square)
    return both
