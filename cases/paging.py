"""Where the keys lie: the page table of a case, and the slots that nobody may read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cases import counter_hash
from cases.ragged import Rows
from cases.schema import MIN_SPARE_PAGES, AttentionCase, PageOrder, pages_owned


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
        page = self.page_table[rows.request, rows.position // self.page_size].long()
        return page * self.page_size + rows.position % self.page_size


def make_paging(case: AttentionCase, device: torch.device | str) -> Paging:
    owned = tuple(pages_owned(r, case.page_size) for r in case.requests)
    total = sum(owned)
    spare = max(MIN_SPARE_PAGES, total // 8)
    num_pages = total + spare if case.pool_pages is None else case.pool_pages
    physical, unowned = _physical_pages(case, owned, num_pages)
    table = torch.full((case.num_requests, max(max(owned), 1)), unowned, dtype=torch.int32)
    start = 0
    for i, count in enumerate(owned):
        table[i, :count] = physical[start : start + count]
        start += count
    return Paging(table.to(device), owned, num_pages, case.page_size)


def _physical_pages(case: AttentionCase, owned: Sequence[int], num_pages: int) -> tuple[Tensor, int]:
    """Physical pages int32 [sum(owned)], request after request, and one page that no one owns."""
    total = sum(owned)
    first = 1  # page 0 stays unowned: "index 0" is what a forgotten table entry reads
    pages = torch.arange(first, first + total, dtype=torch.int64)
    if case.page_order is PageOrder.REVERSED:
        pages = pages.flip(0)
    elif case.page_order is PageOrder.FAR_END:
        pages = pages + (num_pages - total - first)
    elif case.page_order is PageOrder.INTERLEAVED:
        order = [(turn, i) for i, count in enumerate(owned) for turn in range(count)]
        rank = {key: at for at, key in enumerate(sorted(order))}
        pages = first + torch.tensor([rank[key] for key in order], dtype=torch.int64)
    elif case.page_order is PageOrder.SHUFFLED:
        # Shuffle over the spare pages too, so that owned pages are not one dense block. A pool
        # much larger than what is owned is left sparse only near its start.
        candidates = min(num_pages, total + max(MIN_SPARE_PAGES, total // 8))
        keys = counter_hash.row_keys(
            counter_hash.stream_key(case.seed, "pages"),
            torch.zeros(candidates, dtype=torch.int64),
            torch.arange(candidates),
        )
        order_of = torch.argsort(keys[first:]) + first
        pages = order_of[:total]
    return pages.to(torch.int32), 0
