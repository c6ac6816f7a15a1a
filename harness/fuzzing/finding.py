"""A finding: one distinct failure, as small as it gets, with its explanation."""

from __future__ import annotations

import re
from dataclasses import dataclass

from cases.schema import AttentionCase
from harness.diagnosis.explaining import Explanation
from harness.record import Record


@dataclass(frozen=True, slots=True)
class Finding:
    """One distinct failure.

    record:      of the shrunk case, confirmed; its explanation and stability are in it
    original:    of the case that first failed
    edge:        what a case must have for it to show
    examples:    new cases drawn until it showed
    shrink_runs: runs that shrinking took
    """

    adapter: str
    kind: str
    edge: str
    record: Record
    original: Record
    explanation: Explanation
    examples: int
    shrink_runs: int

    def is_same(self, other: Finding) -> bool:
        """True for two engines' findings of one bug: the same small case, or faults that neither could tell apart.

        Without a named fault: the same kind of failure at the same edge.
        """
        if self.adapter != other.adapter or self.kind != other.kind:
            return False
        mine, theirs = self.explanation, other.explanation
        if self.record.case == other.record.case:
            return True
        if mine.fault is None or theirs.fault is None:
            return mine.fault == theirs.fault and self.edge == other.edge
        return mine.fault == theirs.fault or (mine.fault in theirs.equals and theirs.fault in mine.equals)


def name_of(finding: Finding) -> str:
    """A folder's name: the adapter, and the fault or the kind of failure with the shrunk case's id."""
    what = finding.explanation.fault or f"{finding.kind.partition(':')[0].replace(' ', '-')}-{finding.record.case.id}"
    return f"{short_name(finding.adapter)}--{what}"


def short_name(adapter: str) -> str:
    """An adapter's name as part of a file's; of one that came as a file, its class."""
    return re.sub(r"[^A-Za-z0-9._+-]+", "-", adapter.rpartition(":")[2])


def size_of(case: AttentionCase) -> tuple[int, int]:
    """What "smaller" means: total tokens, then the number of requests."""
    return case.total_kv, case.num_requests
