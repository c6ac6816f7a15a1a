"""The two bugs this project exists for, on the shapes where they were seen and on harder ones.

1. Sliding-window EXTEND with a cached prefix, run as ragged + paged + merge_state (SGLang PR #26513).
   The window must hold in both passes, and the paged pass must stop where the prefix does.
2. DRAFT_EXTEND_V2 on FlashAttention (SGLang PR #26512, reverted in #26628, fixture corrected in #26651).
   The kernel must read prefix + extend keys: not the prefix alone, and not the extend twice.

An extend that fits in the window hides half of 1; a long prefix hides most of 2. Both kinds are here.
"""

from __future__ import annotations

from collections.abc import Iterator

from cases.schema import Mode
from cases.suites.table import Row, row

DRAFT = Mode.DRAFT_EXTEND_V2

TINY = ((3, 2), (4, 2), (5, 2))  # as first reported; L = 4
SHORT_EXTENDS = ((40, 5), (100, 3), (8, 8))  # extends inside the window
LONG_EXTENDS = ((40, 50), (100, 70))  # extends longer than the window
NO_PREFIX = ((0, 70),)
MIXED_PREFIX = ((0, 20), (50, 4))
SKEWED = ((300, 4), (5, 4), (64, 4), (17, 4))
SKEWED_DRAFT = ((300, 1), (5, 4), (0, 4), (63, 8))


def _swa_extend() -> Iterator[Row]:
    for page_size in (1, 16):
        at = f"page size {page_size}"
        yield row(f"as reported, {at}", *TINY, window_left=4, page_size=page_size)
        yield row(f"extends inside the window, {at}", *SHORT_EXTENDS, window_left=31, page_size=page_size)
        yield row(f"extends longer than the window, {at}", *LONG_EXTENDS, window_left=31, page_size=page_size)
        yield row(f"no prefix at all, {at}", *NO_PREFIX, window_left=31, page_size=page_size)
        yield row(f"a request without prefix beside one with, {at}", *MIXED_PREFIX, window_left=31, page_size=page_size)
        yield row(f"skewed prefixes, {at}", *SKEWED, window_left=31, page_size=page_size)
    yield row("extends longer than the window, page size 64", *LONG_EXTENDS, window_left=31, page_size=64)
    yield row("skewed prefixes, page size 64", *SKEWED, window_left=31, page_size=64)
    yield row("head_dim 128, extends inside the window", *SHORT_EXTENDS, window_left=31, head_dim=128)
    yield row("head_dim 128, extends longer than the window", *LONG_EXTENDS, window_left=31, head_dim=128)
    yield row("head_dim 128, skewed", *SKEWED, window_left=31, head_dim=128, page_size=64)
    yield row("as reported, fp16, 4 heads, no GQA", *TINY, window_left=4, heads=(4, 4), dtype="float16")
    yield row("fp16, extends longer than the window", *LONG_EXTENDS, window_left=31, dtype="float16")
    yield row("fp16, skewed", *SKEWED, window_left=31, dtype="float16", page_size=1)
    yield row("stale slots zeroed: only the window is left to be wrong", *TINY, window_left=4, poison="zero")
    yield row("no window: the merge alone", *LONG_EXTENDS)
    yield row("no window, a request without prefix", *MIXED_PREFIX)


def _draft_extend_eager() -> Iterator[Row]:
    yield row("as reported: short prefixes, no window", *TINY, mode=DRAFT)
    yield row("as reported, short window, page size 1", *TINY, mode=DRAFT, page_size=1, window_left=4)
    yield row("stale slots zeroed", *TINY, mode=DRAFT, poison="zero")
    yield row("skewed prefixes", *SKEWED, mode=DRAFT)
    yield row("skewed prefixes, window", *SKEWED, mode=DRAFT, window_left=31)
    for page_size in (1, 16, 64):
        at = f"page size {page_size}"
        yield row(f"one long, one without prefix, uneven extends, {at}", *SKEWED_DRAFT, mode=DRAFT, page_size=page_size)
    yield row("uneven extends, window, page size 64", *SKEWED_DRAFT, mode=DRAFT, window_left=31, page_size=64)
    yield row("uneven extends, head_dim 128", *SKEWED_DRAFT, mode=DRAFT, head_dim=128)
    yield row("uneven extends, fp16, window", *SKEWED_DRAFT, mode=DRAFT, window_left=31, dtype="float16")
    yield row("extends longer than the window", *LONG_EXTENDS, mode=DRAFT, window_left=31)
    yield row("page size 256, the only one every FlashAttention takes", *SKEWED_DRAFT, mode=DRAFT, page_size=256)


def _draft_extend_graph() -> Iterator[Row]:
    longer = [(700, 4), (90, 4), (200, 4), (100, 4)]
    shorter = [(2, 4), (1, 4), (0, 4), (3, 4)]
    uneven = [(9, 8), (600, 8), (64, 8), (1, 8)]
    yield row("captured for the same lengths", *TINY, mode=DRAFT, capture=[(3, 2), (4, 2), (5, 2)])
    yield row("captured for longer prefixes", *TINY, mode=DRAFT, capture=[(90, 2), (300, 2), (17, 2)])
    yield row("captured for shorter prefixes", *SKEWED, mode=DRAFT, capture=shorter)
    yield row("captured for longer prefixes, skewed", *SKEWED, mode=DRAFT, capture=longer)
    yield row("captured shorter, window", *SKEWED, mode=DRAFT, window_left=31, capture=shorter)
    yield row("captured longer, window, page 64", *SKEWED, mode=DRAFT, window_left=31, page_size=64, capture=longer)
    yield row("captured for longer extends, uneven replay", *SKEWED_DRAFT, mode=DRAFT, capture=uneven)
    yield row(
        "uneven replay, head_dim 128, page 1", *SKEWED_DRAFT, mode=DRAFT, head_dim=128, page_size=1, capture=uneven
    )
    yield row("uneven replay, fp16", *SKEWED_DRAFT, mode=DRAFT, window_left=31, dtype="float16", capture=uneven)


def rows() -> tuple[Row, ...]:
    return (*_swa_extend(), *_draft_extend_eager(), *_draft_extend_graph())
