"""A finding: one distinct failure, as small as it gets, with its explanation."""

from __future__ import annotations

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

    @property
    def signature(self) -> tuple[str, str, str]:
        """(adapter, named fault or kind of failure, edge): two findings with one signature are the same."""
        if self.explanation.fault is not None:
            return (self.adapter, self.explanation.fault, "")
        return (self.adapter, self.kind, self.edge)


def name_of(finding: Finding) -> str:
    """A folder's name: the adapter, and the fault or the kind of failure with the shrunk case's id."""
    what = finding.explanation.fault or f"{finding.kind.partition(':')[0].replace(' ', '-')}-{finding.record.case.id}"
    return f"{finding.record.adapter.replace('@', '-').replace('/', '-').replace(':', '-')}--{what}"


def size_of(case: AttentionCase) -> tuple[int, int]:
    """What "smaller" means: total tokens, then the number of requests."""
    return case.total_kv, case.num_requests
