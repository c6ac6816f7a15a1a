"""Findings of one kind told once: which records of a run fail alike.

Alike are failures of one adapter with one verdict that a common named fault explains, or, where nothing names
them, that raised the same words at the same line, or that fail the same kinds of evidence.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from harness.record import Record
from harness.verdict import Evidence, Verdict

NAMED = re.compile(r"([\w+.-]+): .*\((?:class |fails with)")
SAME = "the same on this case: "
NUMBER = re.compile(r"0x[0-9a-fA-F]+|\d+(?:\.\d+)?")
LINE = re.compile(r" \(at [^()]*\)$")


@dataclass(frozen=True, slots=True)
class Group:
    """Records that fail alike; `what` says how, "" where there is one record, whose own lines say it."""

    what: str
    records: tuple[Record, ...]

    @property
    def first(self) -> Record:
        """The record to show: whose explanation names the group's fault first, or else that has any."""
        first_named = (r for r in self.records if faults_named(r)[:1] == (self.what,))
        explained = (r for r in self.records if r.explanation)
        return next(first_named, None) or next(explained, self.records[0])


def group_findings(findings: Sequence[Record]) -> list[Group]:
    """Every finding once, groups in the order of their first record."""
    groups: list[Group] = []
    for key in dict.fromkeys((r.adapter, r.verdict) for r in findings):
        mine = [r for r in findings if (r.adapter, r.verdict) == key]
        groups += [*_by_fault(mine), *_unnamed([r for r in mine if not faults_named(r)])]
    order = {id(record): at for at, record in enumerate(findings)}
    return sorted(groups, key=lambda group: order[id(group.records[0])])


def faults_named(record: Record) -> tuple[str, ...]:
    """The faults that its explanation names: the first, and those that give the same output on its case."""
    lines = record.explanation
    matched = NAMED.match(lines[0]) if lines else None
    if matched is None:
        return ()
    same = next((line.removeprefix(SAME) for line in lines if line.startswith(SAME)), "")
    return (matched[1], *(name for name in same.replace(" ...", "").split(", ") if name))


def _by_fault(records: Sequence[Record]) -> list[Group]:
    """Fewest faults first: the one that explains most records takes them all, then the next for what is left."""
    left = [r for r in records if faults_named(r)]
    groups = []
    while left:
        counts = Counter(fault for r in left for fault in dict.fromkeys(faults_named(r)))
        # Among equals the one that was named first, by itself.
        first_named = Counter(faults_named(r)[0] for r in left)
        best = max(counts, key=lambda fault: (counts[fault], first_named[fault]))
        groups.append(Group(best, tuple(r for r in left if best in faults_named(r))))
        left = [r for r in left if best not in faults_named(r)]
    return groups


def _unnamed(records: Sequence[Record]) -> list[Group]:
    kinds = dict.fromkeys(_kind(r) for r in records)
    return [Group(kind, tuple(r for r in records if _kind(r) == kind)) for kind in kinds]


def _kind(record: Record) -> str:
    """What failed, without what differs from case to case."""
    if record.verdict not in (Verdict.WRONG, Verdict.POISONED):
        place = LINE.search(record.reason)
        words = NUMBER.sub("#", LINE.sub("", record.reason))
        return words + (place[0] if place else "")
    failed = {e.kind.split("/")[0] if e.kind.startswith("certificate/") else e.kind for e in _failed(record)}
    seen = f"fails {', '.join(sorted(failed))}" if failed else "fails"
    return f"{seen}; {'no named fault explains it' if record.explanation else 'not explained'}"


def _failed(record: Record) -> list[Evidence]:
    return [e for e in record.evidence if e.passed is False and e.decides]
