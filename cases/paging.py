"""Where the keys lie: the page table of a case, and the slots that nobody may read.

Worked out on the host, in NumPy, whose small steps cost a fifth of torch's, for all cases of a group at once.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from cases import counter_hash, hash_numpy
from cases.ragged import Ints, Rows, before, lengths_of, ragged_places, split
from cases.schema import MIN_SPARE_PAGES, AttentionCase, PageOrder

FIRST = 1  # page 0 stays unowned: "index 0" is what a forgotten table entry reads
UNOWNED = 0


@dataclass(frozen=True, slots=True, eq=False)
class Paging:
    """The cache layout of a case. Each equals itself alone, so that what is worked out of one can be kept by it.

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


class Pages(NamedTuple):
    """The pages that the requests of cases own, one request after another, on the host.

    page:      int64 [pages], in the pool of its case
    request:   int64 [pages]: the owner, counted among the requests of all cases
    turn:      int64 [pages]: which of its request's pages it is
    owned:     int64 [requests]: how many each request owns
    page_size: int64 [requests]
    num_pages: int64 [cases]: pages in the pool of each case
    """

    page: Ints
    request: Ints
    turn: Ints
    owned: Ints
    page_size: Ints
    num_pages: Ints


@functools.lru_cache(maxsize=4)
def pages_of(cases: tuple[AttentionCase, ...]) -> Pages:
    """Not to be written to: kept, because a case is built once per certificate."""
    lengths = lengths_of(cases)
    page_size = lengths.of_requests([case.page_size for case in cases])
    owned = -(-(lengths.kv + lengths.extend) // page_size)  # pages_owned of each
    total = lengths.of_case(owned)
    dense = total + np.maximum(MIN_SPARE_PAGES, total // 8)
    num_pages = np.where([case.pool_pages is None for case in cases], dense, [case.pool_pages or 0 for case in cases])
    request, turn = ragged_places(owned)
    # Shuffle over the spare pages too, so that owned pages are not one dense block. A pool much
    # larger than what is owned is left sparse only near its start.
    keys = _shuffling_keys(cases, np.minimum(num_pages, dense))
    turns, pools = split(turn, total), num_pages.tolist()
    page = [_physical_pages(*each) for each in zip(cases, turns, pools, keys, strict=True)]
    return Pages(np.concatenate(page), request, turn, owned, page_size, num_pages)


@functools.lru_cache(maxsize=4)
def host_pagings(cases: tuple[AttentionCase, ...]) -> list[Paging]:
    """Of each case, on the host. Kept, as `pages_of` is."""
    return _pagings(cases)


def make_paging(case: AttentionCase, device: torch.device | str) -> Paging:
    """Of one case, to be written to."""
    (paging,) = _pagings((case,))
    return replace(paging, page_table=paging.page_table.to(device))


def _pagings(cases: tuple[AttentionCase, ...]) -> list[Paging]:
    lengths, pages = lengths_of(cases), pages_of(cases)
    columns = np.maximum.reduceat(pages.owned, lengths.first)
    row = before(lengths.of_requests(columns))  # where the row of each request begins
    tables = np.full(int(columns @ lengths.requests), UNOWNED, dtype=np.int32)
    # A store that casts takes twice as long as a cast and a store.
    tables[np.repeat(row, pages.owned) + pages.turn] = pages.page.astype(np.int32)
    each_table = torch.split(torch.from_numpy(tables), (columns * lengths.requests).tolist())
    each_owned = split(pages.owned, lengths.requests)
    return [
        Paging(table.view(case.num_requests, -1), tuple(owned.tolist()), num_pages, case.page_size)
        for case, table, owned, num_pages in zip(cases, each_table, each_owned, pages.num_pages.tolist(), strict=True)
    ]


def _physical_pages(case: AttentionCase, turn: Ints, num_pages: int, keys: Ints) -> Ints:
    """Physical pages, request after request; turn: which of its request's pages each is; keys: to shuffle by."""
    total = len(turn)
    if case.page_order is PageOrder.SHUFFLED:
        return _sorting(keys)[:total] + FIRST
    pages: Ints = np.arange(FIRST, FIRST + total)
    if case.page_order is PageOrder.REVERSED:
        pages = pages[::-1]
    elif case.page_order is PageOrder.FAR_END:
        pages = pages + (num_pages - total - FIRST)
    elif case.page_order is PageOrder.INTERLEAVED:
        rank = np.empty(total, dtype=np.int64)
        rank[np.argsort(turn, kind="stable")] = np.arange(total)
        pages = FIRST + rank
    return pages


def _shuffling_keys(cases: tuple[AttentionCase, ...], candidates: Ints) -> list[Ints]:
    """A hash of each page FIRST .. candidates-1 of every pool; of none where nothing is shuffled."""
    count = np.where([case.page_order is PageOrder.SHUFFLED for case in cases], candidates - FIRST, 0)
    streams = np.array([counter_hash.stream_key(case.seed, "pages") for case in cases], dtype=np.int64)
    zero = np.zeros_like(count)
    return split(hash_numpy.packed_row_keys(count, zero + FIRST, zero, streams), count)


def _sorting(keys: Ints) -> Ints:
    """np.argsort of different int64 hashes. Sorted by their highest 16 bits, by radix, they are all but in order."""
    nearly = np.argsort((keys >> 48).astype(np.int16), kind="stable")
    return nearly[np.argsort(keys[nearly], kind="stable")]
