"""The order of the requests does not matter: each gets the rows that it got before.

Its pages move with it, so bits are compared only where the adapter declares that neither matters to them.
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.metamorphic.relation import Subject, Variant, only_requests


class BatchPermutation:
    name = "batch-permutation"

    def not_run(self, subject: Subject) -> str | None:
        return "the batch has a single request" if subject.case.num_requests == 1 else None

    def variants(self, subject: Subject) -> Iterator[Variant]:
        # Reversed: every request but the middle one moves, and all change their neighbours' side.
        case, data, rows = only_requests(subject, range(subject.case.num_requests)[::-1])
        yield Variant("the requests in reverse order", case, data, rows, bits_are_invariant(subject), subject.level)


def bits_are_invariant(subject: Subject) -> bool:
    """A request's bits depend neither on its neighbours nor on where its pages lie."""
    return subject.batch_invariant and subject.page_invariant and subject.deterministic
