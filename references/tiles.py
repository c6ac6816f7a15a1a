"""How golden attention cuts a case into pieces of work, on the host, from the case's integers alone.

A tile is some query rows of one request and the keys that any of them sees. Tiles of like size are padded to
one shape and computed as one batch, because a case of many small requests costs a GPU (and a CPU) more
in calls than in arithmetic; tiles of unlike size are not, because padding is arithmetic too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cases.ragged import query_rows, uploaded
from cases.schema import AttentionCase
from references.visibility import visible_interval

Ints = NDArray[np.int64]
ROWS = 128  # of a tile: keys under the diagonal and left of a window are then mostly not computed
# What a batch of tiles costs beside its arithmetic, in scores: launches of kernels, or calls.
OVERHEAD_SCORES = {"cpu": 1 << 16, "cuda": 1 << 24}
SPLIT_FROM = 8  # splits: fewer are not worth another pass


class Tiles(NamedTuple):
    """Of each tile int64 [n]: rows row .. row+rows-1 of the packed queries, over packed keys.

    The keys low..middle are those of the cached prefix and middle..high the new ones, or, where legs are not told
    apart, low..high and none. `open_from`, `open_to`: the keys that all of its rows see.
    """

    row: Ints
    rows: Ints
    low: Ints
    middle: Ints
    high: Ints
    open_from: Ints
    open_to: Ints


@dataclass(frozen=True, slots=True)
class Bucket:
    """Tiles that are computed as one batch, padded to `rows` rows and `prefix` + `new` key columns."""

    tiles: Tiles
    rows: int
    prefix: int
    new: int

    def chunks(self, most: int, split: int | None = None) -> Iterator[tuple[int, int]]:
        """Column ranges of at most `most`; only a single one holds columns of both legs.

        With `split`, a range of many keys is a multiple of it, to be computed as equal splits, or shorter than it.
        """
        if self.prefix + self.new <= most and (split is None or self.prefix + self.new < SPLIT_FROM * split):
            yield 0, self.prefix + self.new
            return
        step = most if split is None else max(split, most // split * split)
        for start, stop in ((0, self.prefix), (self.prefix, self.prefix + self.new)):
            for begin in range(start, stop, step):
                end = min(stop, begin + step)
                whole = end if split is None else begin + (end - begin) // split * split
                yield from [(low, high) for low, high in ((begin, whole), (whole, end)) if low < high]

    def splits(self, begin: int, end: int, split: int | None) -> int:
        """How many equal splits of `split` keys the range begin..end is, all of one leg; 1 if it is not."""
        mixed = begin < self.prefix < end
        return 1 if split is None or mixed or (end - begin) % split else (end - begin) // split

    def is_open(self, begin: int, end: int) -> bool:
        """Every column begin..end is a key that every row of its tile sees."""
        if begin < self.prefix < end:
            return False
        tiles = self.tiles
        first, limit = (tiles.low, tiles.middle) if begin < self.prefix else (tiles.middle - self.prefix, tiles.high)
        return bool(
            np.all((first + end <= limit) & (first + begin >= tiles.open_from) & (first + end <= tiles.open_to))
        )


def make_buckets(
    case: AttentionCase, first: Ints, last: Ints, *, split_legs: bool, most_scores: int, device: str
) -> list[Bucket]:
    """Buckets that cover every row once. first, last: [total_q], the visible interval of each row, by position in its
    request. A bucket holds at most `most_scores` scores per pass over its keys, one tile apart, and pads its tiles by
    less than another bucket would cost."""
    tiles = _tiles(case, first, last, split_legs, min(ROWS, max(1, most_scores // case.num_qo_heads)))
    order = np.lexsort((-tiles.rows, tiles.low - tiles.high))
    tiles = Tiles(*(each[order] for each in tiles))
    overhead = OVERHEAD_SCORES.get(device, OVERHEAD_SCORES["cuda"]) // case.num_qo_heads
    most = most_scores // case.num_qo_heads
    buckets: list[Bucket] = []
    begin = own = rows = prefix = new = 0  # of the last bucket; own: scores per head of its tiles without padding

    def close(end: int) -> None:
        if end > begin:
            buckets.append(Bucket(Tiles(*(each[begin:end] for each in tiles)), rows, prefix, new))

    shapes = (tiles.rows, tiles.middle - tiles.low, tiles.high - tiles.middle)
    for at, (of_tile, of_prefix, of_new) in enumerate(zip(*(each.tolist() for each in shapes), strict=True)):
        scores = of_tile * (of_prefix + of_new)
        grown = max(rows, of_tile), max(prefix, of_prefix), max(new, of_new)
        padded = (at + 1 - begin) * grown[0] * (grown[1] + grown[2])
        if at > begin and padded <= min(most, own + scores + overhead):
            (rows, prefix, new), own = grown, own + scores
            continue
        close(at)
        begin, own, (rows, prefix, new) = at, scores, (of_tile, of_prefix, of_new)
    close(len(tiles.row))
    return buckets


def _tiles(case: AttentionCase, first: Ints, last: Ints, split_legs: bool, rows: int) -> Tiles:
    extend_lens, prefix_lens, kv_lens = (
        np.array([getattr(r, name) for r in case.requests], dtype=np.int64)
        for name in ("extend_len", "prefix_len", "kv_len")
    )
    counts = -(-extend_lens // rows)
    request = np.repeat(np.arange(len(counts)), counts)
    turn = np.arange(len(request)) - np.repeat(np.cumsum(counts) - counts, counts)
    row = (np.cumsum(extend_lens) - extend_lens)[request] + turn * rows
    of_tile = np.minimum(extend_lens[request] - turn * rows, rows)
    start = (np.cumsum(kv_lens) - kv_lens)[request]
    low, high = np.minimum.reduceat(first, row), np.maximum.reduceat(last, row)
    middle = np.clip(prefix_lens[request], low, np.maximum(low, high)) if split_legs else high
    open_from, open_to = np.maximum.reduceat(first, row), np.minimum.reduceat(last, row)
    return Tiles(row, of_tile, *(start + each for each in (low, middle, high, open_from, open_to)))


@dataclass(frozen=True, slots=True)
class BucketIndex:
    """A bucket's indices on the device; B tiles, R rows.

    rows:        int64 [B, R], packed query rows; padding repeats the tile's last row
    first, last: int64 [B, R], the visible interval in packed keys
    low, middle, high: int64 [B, 1]
    """

    rows: Tensor
    first: Tensor
    last: Tensor
    low: Tensor
    middle: Tensor
    high: Tensor


@dataclass(frozen=True, slots=True)
class Plan:
    """What golden attention does, worked out on the host: nothing of it depends on data.

    packed: int64, the indices of every bucket one after another and then `place`, with the number of each part
    place:  int64 [2, total_q]: where each packed row of head 0 stands among the padded [B, Hq, R] of all buckets one
            after another, and how much further on that of the next head does
    """

    buckets: list[Bucket]
    packed: Tensor
    parts: list[int]

    def on(self, device: torch.device, heads: int) -> tuple[list[BucketIndex], Tensor]:
        """The indices of every bucket, by one copy, and the place of each row and head, int64 [total_q, heads]."""
        (packed,) = uploaded(device, self.packed)
        pieces = iter(torch.split(packed, self.parts))
        indices = []
        for bucket in self.buckets:
            shape = (len(bucket.tiles.row), bucket.rows)
            padded_rows, begin, end = (next(pieces).view(shape) for _ in range(3))
            low, middle, high = next(pieces).view(3, -1, 1).unbind(0)
            indices.append(BucketIndex(padded_rows, begin, end, low, middle, high))
        head_0, stride = next(pieces).view(2, -1, 1)
        return indices, head_0 + stride * torch.arange(heads, device=device)


def make_plan(case: AttentionCase, *, split_legs: bool, most_scores: int, device: str) -> Plan:
    """For a device of that type; `most_scores` as in `make_buckets`."""
    first, last = (each.numpy() for each in visible_interval(case, query_rows(case, "cpu")))
    buckets = make_buckets(case, first, last, split_legs=split_legs, most_scores=most_scores, device=device)
    parts: list[Ints] = []
    place = np.empty((2, case.total_q), dtype=np.int64)
    padded = 0
    starts = _kv_start_of_rows(case)
    begins, ends = first + starts, last + starts
    for bucket in buckets:
        tiles = bucket.tiles
        row, count = tiles.row[:, None], tiles.rows[:, None]
        local = np.arange(bucket.rows)
        rows, is_row = row + np.minimum(local, count - 1), local < count
        parts += [rows.ravel(), begins[rows].ravel(), ends[rows].ravel()]
        parts.append(np.concatenate([tiles.low, tiles.middle, tiles.high]))
        head_0 = padded + np.arange(len(row))[:, None] * (case.num_qo_heads * bucket.rows)
        place[0, rows[is_row]] = (head_0 + local)[is_row]
        place[1, rows[is_row]] = bucket.rows
        padded += rows.size * case.num_qo_heads
    parts.append(place.ravel())
    return Plan(buckets, torch.from_numpy(np.concatenate(parts)), [part.size for part in parts])


def _kv_start_of_rows(case: AttentionCase) -> Ints:
    """int64 [total_q]: the packed key at position 0 of each row's request."""
    kv_lens = np.array([r.kv_len for r in case.requests], dtype=np.int64)
    return np.repeat(np.cumsum(kv_lens) - kv_lens, [r.extend_len for r in case.requests])
