"""Where the keys lie: the page table of a case, and the slots that nobody may read.

Worked out on the host, in NumPy, whose small steps cost a fifth of torch's.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cases import counter_hash
from cases.ragged import Rows
from cases.schema import MIN_SPARE_PAGES, AttentionCase, PageOrder, pages_owned

FIRST = 1  # page 0 stays unowned: "index 0" is what a forgotten table entry reads
UNOWNED = 0
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Paging:
    """The cache layout of a case.

    page_table: int32 [num_requests, columns]. Columns past the pages that a request owns name a
                page that no request owns.
    owned:      pages owned by each request, [num_requests] host integers
    num_pages:  pages in the pool
    """

    page_table: Tensor
    owned: tuple[int, ...]
    num_pages: int
    page_size: int

    def slots(self, rows: Rows) -> Tensor:
        """int64 [n]: the pool slot (page * page_size + offset) of each row."""
        if self.page_table.device.type == "cpu" and rows.position.device.type == "cpu":
            table, request, position = self.page_table.numpy(), rows.request.numpy(), rows.position.numpy()
            turn, offset = np.divmod(position, self.page_size)
            return torch.from_numpy(table[request, turn].astype(np.int64) * self.page_size + offset)
        page = self.page_table[rows.request, rows.position // self.page_size].long()
        return page * self.page_size + rows.position % self.page_size


@dataclass(frozen=True, slots=True)
class Owners:
    """The page table the other way round, int32 [num_pages] on the host: the request that owns a page (-1: none), and
    which of its pages it is."""

    request: NDArray[np.int32]
    turn: NDArray[np.int32]


def make_paging(case: AttentionCase, device: torch.device | str) -> Paging:
    owned = tuple(pages_owned(r, case.page_size) for r in case.requests)
    total = sum(owned)
    spare = max(MIN_SPARE_PAGES, total // 8)
    num_pages = total + spare if case.pool_pages is None else case.pool_pages
    table = np.full((case.num_requests, max(*owned, 1)), UNOWNED, dtype=np.int32)
    request, turn = ragged_places(owned)
    table[request, turn] = _physical_pages(case, turn, num_pages)
    return Paging(torch.from_numpy(table).to(device), owned, num_pages, case.page_size)


@functools.lru_cache(maxsize=64)
def host_paging(case: AttentionCase) -> Paging:
    """On the host, not to be written to. Kept: a case is built once per certificate, and a group's before."""
    return make_paging(case, "cpu")


def owners_of(paging: Paging) -> Owners:
    """Of every page of the pool; `paging` lies on the host."""
    owners = Owners(np.full(paging.num_pages, -1, dtype=np.int32), np.zeros(paging.num_pages, dtype=np.int32))
    request, turn = ragged_places(paging.owned)
    pages = paging.page_table.numpy()[request, turn]
    owners.request[pages], owners.turn[pages] = request, turn
    return owners


def ragged_places(counts: Sequence[int]) -> tuple[Ints, Ints]:
    """int64 [sum(counts)] each: of the elements of ragged rows one after another the row, and the place in it."""
    lengths = np.array(counts, dtype=np.int64)
    row = np.repeat(np.arange(len(counts)), lengths)
    return row, np.arange(len(row)) - np.repeat(np.cumsum(lengths) - lengths, lengths)


def _physical_pages(case: AttentionCase, turn: Ints, num_pages: int) -> Ints:
    """Physical pages, request after request; turn: which of its request's pages each is."""
    total = len(turn)
    pages: Ints = np.arange(FIRST, FIRST + total)
    if case.page_order is PageOrder.REVERSED:
        pages = pages[::-1]
    elif case.page_order is PageOrder.FAR_END:
        pages = pages + (num_pages - total - FIRST)
    elif case.page_order is PageOrder.INTERLEAVED:
        rank = np.empty(total, dtype=np.int64)
        rank[np.argsort(turn, kind="stable")] = np.arange(total)
        pages = FIRST + rank
    elif case.page_order is PageOrder.SHUFFLED:
        # Shuffle over the spare pages too, so that owned pages are not one dense block. A pool
        # much larger than what is owned is left sparse only near its start.
        candidates = min(num_pages, total + max(MIN_SPARE_PAGES, total // 8))
        keys = counter_hash.row_keys(
            counter_hash.stream_key(case.seed, "pages"),
            torch.zeros(candidates, dtype=torch.int64),
            torch.arange(candidates),
        )
        pages = np.argsort(keys.numpy()[FIRST:])[:total] + FIRST
    return pages
