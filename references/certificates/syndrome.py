"""Which keys did a wrong row attend to? Read from one FLAT run, where few keys are wrong.

A row's recovered sum differs from the right one by dS, its count by dn. Every key has a code word, and a
linear hash H(x) = sum_d w_d x_d mod 2^64 makes one number of a word, so that H(dS) is the sum of the
hashes of added keys less those of dropped ones. Then, with L known keys:

    one key            H(dS) = +-h_i                       look up
    a run of keys      |dn| of them in a row               differences of prefix hashes, all places at once
    both edges moved   x keys added left, x - dn off right  the same over x
    one for another    H(dS) = h_j - h_i                   each i against a sorted list: L log L
    page for page      the same over whole pages
    two added, two dropped: the same sorted list

A solution is accepted if the words themselves, not only their hashes, add up to dS.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from cases import counter_hash


@dataclass(frozen=True, slots=True)
class Decoding:
    """Keys as indices into the known ones. `kind` names the shape: "one key", "run", "edges", "exchange",
    "page", "pair"."""

    kind: str
    added: tuple[int, ...] = ()
    dropped: tuple[int, ...] = ()


class KnownKeys:
    """The code words that a row could have attended to: its own keys first, foreign and stale ones after.

    words:  integers [keys, columns] (plain columns only: their sums survive the output's rounding)
    own:    how many of them, from 0, are the request's own, in order of position
    page_size: of the cache; own keys k*page_size.. form page k
    """

    def __init__(self, words: Tensor, own: int, page_size: int) -> None:
        self.words = words.long()
        self.own = own
        self.page_size = page_size
        columns = torch.arange(words.shape[1], dtype=torch.int64, device=words.device)
        self._factors = counter_hash.mix(columns * 2 + 1) | 1
        self.hashes = self.hash(self.words)
        self._prefix = torch.zeros(own + 1, dtype=torch.int64, device=words.device)
        torch.cumsum(self.hashes[:own], 0, out=self._prefix[1:])
        self._sorted, self._order = torch.sort(self.hashes)

    def hash(self, words: Tensor) -> Tensor:
        """int64, linear: torch's int64 arithmetic wraps, which is mod 2^64."""
        return (words * self._factors).sum(-1)

    def decode(self, first: int, last: int, sum_error: Tensor, count_error: int) -> Decoding | None:
        """The simplest change of the visible keys first..last that explains dS [columns] and dn."""
        target = self.hash(sum_error.long())
        for found in self._candidates(first, last, target, count_error):
            if self._explains(found, sum_error, count_error):
                return found
        return None

    def _explains(self, found: Decoding, sum_error: Tensor, count_error: int) -> bool:
        total = self.words[list(found.added)].sum(0) - self.words[list(found.dropped)].sum(0)
        return len(found.added) - len(found.dropped) == count_error and torch.equal(total, sum_error.long())

    def _candidates(self, first: int, last: int, target: Tensor, dn: int) -> Iterator[Decoding]:
        if abs(dn) == 1:
            for key in self._look_up(target * dn):
                yield Decoding("one key", (key,), ()) if dn > 0 else Decoding("one key", (), (key,))
        if dn:
            yield from self._runs(target, dn)
        yield from self._edges(first, last, target, dn)
        if dn == 0:
            yield from self._pages(first, last, target)
            yield from self._exchanges(first, last, target)
        if abs(dn) == 2:
            yield from self._pairs(target * (1 if dn > 0 else -1), dn)

    def _look_up(self, wanted: Tensor) -> list[int]:
        """Keys whose hash is `wanted`."""
        at = int(torch.searchsorted(self._sorted, wanted))
        found = []
        while at < len(self._sorted) and bool(self._sorted[at] == wanted):
            found.append(int(self._order[at]))
            at += 1
        return found

    def _match(self, wanted: Tensor) -> tuple[Tensor, Tensor]:
        """For hashes `wanted` [n]: which of them some key has, and one such key."""
        at = torch.searchsorted(self._sorted, wanted).clamp(max=len(self._sorted) - 1)
        hit = (self._sorted[at] == wanted).nonzero()[:, 0]
        return hit, self._order[at[hit]]

    def _runs(self, target: Tensor, dn: int) -> Iterator[Decoding]:
        length, sign = abs(dn), 1 if dn > 0 else -1
        if length > self.own:
            return
        sums = self._prefix[length:] - self._prefix[: self.own + 1 - length]
        for begin in (sums == target * sign).nonzero()[:, 0].tolist():
            keys = tuple(range(begin, begin + length))
            yield Decoding("run", keys, ()) if sign > 0 else Decoding("run", (), keys)

    def _edges(self, first: int, last: int, target: Tensor, dn: int) -> Iterator[Decoding]:
        """The visible interval first..last read as begin..begin + n + dn instead."""
        length = last - first + dn
        if not 0 <= length <= self.own:
            return
        right = self._prefix[last] - self._prefix[first]
        sums = self._prefix[length:] - self._prefix[: self.own + 1 - length] - right
        for begin in (sums == target).nonzero()[:, 0].tolist():
            seen, wanted = set(range(begin, begin + length)), set(range(first, last))
            yield Decoding("edges", tuple(sorted(seen - wanted)), tuple(sorted(wanted - seen)))

    def _pages(self, first: int, last: int, target: Tensor) -> Iterator[Decoding]:
        """A page of visible keys read from another whole page."""
        size = self.page_size
        pages = len(self.hashes) // size
        if pages < 2 or size == 1:
            return
        sums = self.hashes[: pages * size].view(pages, size).sum(1)
        ordered, order = torch.sort(sums)
        gone = torch.arange(-(-first // size), last // size, device=sums.device)
        if gone.numel() == 0:
            return
        at = torch.searchsorted(ordered, sums[gone] + target).clamp(max=pages - 1)
        for hit in (ordered[at] == sums[gone] + target).nonzero()[:, 0].tolist():
            source, lost = int(order[at[hit]]), int(gone[hit])
            yield Decoding(
                "page",
                tuple(range(source * size, (source + 1) * size)),
                tuple(range(lost * size, (lost + 1) * size)),
            )

    def _exchanges(self, first: int, last: int, target: Tensor) -> Iterator[Decoding]:
        hit, key = self._match(self.hashes[first:last] + target)
        for lost, gained in zip(hit.tolist(), key.tolist(), strict=True):
            yield Decoding("exchange", (gained,), (first + lost,))

    def _pairs(self, target: Tensor, dn: int) -> Iterator[Decoding]:
        hit, key = self._match(target - self.hashes)
        for one, other in zip(hit.tolist(), key.tolist(), strict=True):
            if one <= other:  # the same key twice is a key counted twice more
                yield Decoding("pair", (one, other), ()) if dn > 0 else Decoding("pair", (), (one, other))


def row_errors(
    right_code: Tensor, right_count: int, out: Tensor, lse: float, v_scale: float, plain: list[int]
) -> tuple[Tensor, int] | None:
    """dS [plain columns] and dn of one row of a FLAT run, or None if its integers cannot be read.

    right_code, out: [head_dim_vo]; lse natural.
    """
    count = torch.exp(torch.tensor(lse, dtype=torch.float64))
    sums = out.double()[plain] * torch.round(count) / v_scale
    if not bool(torch.isfinite(sums).all() & torch.isfinite(count)):
        return None
    return torch.round(sums).long() - right_code[plain].long(), int(torch.round(count)) - right_count
