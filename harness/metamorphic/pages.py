"""Where the pages lie does not matter: another page order, and another place in the pool, give the same bits.

Page tables are data of the kernel; what it computes, and in which order, follows from lengths alone. A kernel that
loads neighbouring pages at once where it finds them may be an exception: its adapter declares `page_invariant = False`
and is held to the row bounds.
"""

from __future__ import annotations

from collections.abc import Iterator

from cases.schema import AttentionCase, PageOrder, pages_owned
from harness.metamorphic.relation import Subject, Variant, all_rows

MORE_PAGES = 5  # odd, so that a far end does not begin on a page number that the original order uses as a multiple


class PagePermutation:
    name = "page-permutation"

    def not_run(self, subject: Subject) -> str | None:
        del subject
        return None

    def variants(self, subject: Subject) -> Iterator[Variant]:
        for case in (_reordered(subject.case), _moved(subject.case)):
            exact = subject.page_invariant and subject.deterministic
            label = f"pages {case.page_order.replace('_', ' ')}"
            yield Variant(label, case, subject.data, all_rows(subject), exact, subject.level)


def _reordered(case: AttentionCase) -> AttentionCase:
    back = case.page_order is PageOrder.REVERSED
    return case.replace(page_order=PageOrder.SHUFFLED if back else PageOrder.REVERSED)


def _moved(case: AttentionCase) -> AttentionCase:
    """At the end of a pool twice as large; of its own pool where the case has asked for one."""
    pool = case.pool_pages
    if pool is None:
        pool = 2 * sum(pages_owned(r, case.page_size) for r in case.requests) + MORE_PAGES
    at_end = case.page_order is PageOrder.FAR_END
    return case.replace(page_order=PageOrder.CONTIGUOUS if at_end else PageOrder.FAR_END, pool_pages=pool)
