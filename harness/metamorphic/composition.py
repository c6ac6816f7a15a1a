"""A request alone gives the rows that it gives within a batch: nothing of its neighbours is in them."""

from __future__ import annotations

from collections.abc import Iterator

from cases.schema import AttentionCase
from harness.metamorphic.batch_order import bits_are_invariant
from harness.metamorphic.relation import Subject, Variant, only_requests

MOST_ALONE = 4  # requests that are run alone; a fault of the batch rarely spares all of them


class BatchComposition:
    name = "batch-composition"

    def not_run(self, subject: Subject) -> str | None:
        if subject.case.num_requests == 1:
            return "the batch has a single request"
        if subject.case.execution.uses_graph:
            return "a graph is replayed on as many requests as it was captured for"
        return None

    def variants(self, subject: Subject) -> Iterator[Variant]:
        for index in _chosen(subject.case):
            case, data, rows = only_requests(subject, [index])
            yield Variant(f"request {index} alone", case, data, rows, bits_are_invariant(subject), subject.level)


def _chosen(case: AttentionCase) -> list[int]:
    """Up to MOST_ALONE requests with new rows, spread over the batch, its first and last among them."""
    with_rows = [i for i, request in enumerate(case.requests) if request.extend_len]
    count = min(MOST_ALONE, len(with_rows))
    return sorted({with_rows[turn * (len(with_rows) - 1) // max(1, count - 1)] for turn in range(count)})
