"""Long contexts: prefixes of 32k to 131072 keys, few rows, and pools past 2^31 elements.

For a GPU: the fp64 reference of one case reads gigabytes. A single wrong key moves nothing that a
flat tolerance could see at these lengths; the exact certificates are what judges them.
"""

from __future__ import annotations

from collections.abc import Iterator

from cases.schema import Mode, PageOrder
from cases.suites.table import Row, row

DECODE, DRAFT = Mode.DECODE, Mode.DRAFT_EXTEND_V2
HUGE_POOL_PAGES = (1 << 31) // (16 * 2 * 64) + 4096  # past 2^31 elements at page 16, 2 kv heads, head_dim 64


def rows() -> tuple[Row, ...]:
    return tuple(_rows())


def _rows() -> Iterator[Row]:
    for window in (None, 1024, 65535):
        at = "no window" if window is None else f"window_left {window}"
        yield row(f"one row on 131072, {at}", (131072, 1), window_left=window)
        yield row(f"64 rows on 131072 minus one, {at}", (131071, 64), window_left=window, page_size=64)
        yield row(f"long beside short, {at}", (100_000, 3), (5, 7), (0, 9), window_left=window)
        yield row(
            f"decode, 32k and 64k edges, {at}", (32767, 1), (65535, 1), (65536, 1), mode=DECODE, window_left=window
        )
        yield row(
            f"draft extend on 32k, page size 1, {at}", (32768, 4), (17, 4), mode=DRAFT, page_size=1, window_left=window
        )
    yield row("kv splits on 131072", (131072, 2), splits=8)
    yield row("chunk longer than a window on 64k", (65536, 300), window_left=127)
    yield row("head_dim 128 on 131072", (131072, 4), head_dim=128)
    yield row("graph captured short, replayed on 100k", (100_000, 4), (9, 4), mode=DRAFT, capture=[(5, 4), (3, 4)])
    yield row("slots past 2^31 elements", (300, 5), (40, 9), page_order=PageOrder.FAR_END, pool_pages=HUGE_POOL_PAGES)
    yield row(
        "slots past 2^31 elements, window",
        (300, 50),
        page_order=PageOrder.FAR_END,
        pool_pages=HUGE_POOL_PAGES,
        window_left=31,
    )
