"""Findings of one kind told once: which records of a run fail alike.

Alike are failures of one adapter with one verdict that a common named fault explains, or, where nothing names
them, that raised the same words at the same line, or that fail the same kinds of evidence. A run explains an adapter's
first few failures; those it did not try to explain may be the same again, and are told as more, not as another kind.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from harness.record import FIRST_SEEN, Record
from harness.verdict import Evidence, Stability, Verdict

NAMED = re.compile(r"([\w+.-]+): .*\((?:class |fails with)")
SAME = "the same on this case: "
NUMBER = re.compile(r"0x[0-9a-fA-F]+|\d+(?:\.\d+)?")
LINE = re.compile(r" \(at [^()]*\)$")
EXPLAINABLE = (Verdict.WRONG, Verdict.POISONED)
SHOWN_IDS = 6
NOT_TRIED = "explanation not tried"


@dataclass(frozen=True, slots=True)
class Group:
    """Records that fail alike; `what` says how, "" where there is one record, whose own lines say it."""

    what: str
    records: tuple[Record, ...]
    more: bool = False  # not tried, beside others of the adapter and verdict that were explained

    @property
    def first(self) -> Record:
        """The record to show: whose explanation names the group's fault first, or else that has any."""
        first_named = (r for r in self.records if faults_named(r)[:1] == (self.what,))
        explained = (r for r in self.records if r.explanation)
        return next(first_named, None) or next(explained, self.records[0])

    @property
    def others(self) -> tuple[Record, ...]:
        return tuple(record for record in self.records if record is not self.first)

    @property
    def told(self) -> str:
        """What is said before the first case's name, "7 cases, window-one-too-wide; first: "; "" of one alone."""
        if self.more:
            plural, first = ("s", "first: ") if self.others else ("", "")
            return f"{len(self.records)} more case{plural}, {self.what}; {first}"
        return f"{len(self.records)} cases, {self.what}; first: " if self.others else ""

    @property
    def run_again(self) -> str:
        """What fresh processes said: "run three times: 2 deterministic"; "" where nothing was run again."""
        stabilities = Counter(str(r.stability) for r in self.records if r.stability is not None)
        each = ", ".join(f"{count} {what}" if self.others else what for what, count in stabilities.items())
        if str(Stability.STATE_DEPENDENT) in stabilities:
            each += " (right alone in a fresh process, wrong after other cases)"
        return f"run three times: {each}" if each else ""

    @property
    def comes_and_goes(self) -> bool:
        """Some case of it was right when it was run again: what explains it may not be what it is about."""
        return any(r.stability not in (None, Stability.DETERMINISTIC) for r in self.records)

    @property
    def other_ids(self) -> str:
        """Ids of the other cases, the first few; "" where there is none."""
        left = len(self.others) - SHOWN_IDS
        ids = " ".join(other.case.id for other in self.others[:SHOWN_IDS])
        return f"{ids} and {left} more" if left > 0 else ids


def group_findings(findings: Sequence[Record]) -> list[Group]:
    """Every finding once: groups in the order of their first record, what was not tried after what was explained."""
    order = {id(record): at for at, record in enumerate(findings)}
    groups: list[tuple[int, Group]] = []
    for key in dict.fromkeys((r.adapter, r.verdict) for r in findings):
        mine = [r for r in findings if (r.adapter, r.verdict) == key]
        left = [r for r in mine if not_tried(r)] if any(r.explanation for r in mine) else []
        tried = [r for r in mine if not not_tried(r)] if left else mine
        told = [*_by_fault(tried), *_unnamed([r for r in tried if not faults_named(r)])]
        groups += [(order[id(group.records[0])], group) for group in told]
        if left:
            groups.append((max(at for at, _ in groups[-len(told) :]), Group(NOT_TRIED, tuple(left), more=True)))
    return [group for _, group in sorted(groups, key=lambda placed: placed[0])]


def not_tried(record: Record) -> bool:
    """A wrong answer that nothing tried to explain: a run tries an adapter's first few."""
    return record.verdict in EXPLAINABLE and not record.explanation


def failed_kinds(record: Record) -> tuple[str, ...]:
    """The kinds of evidence that fail, the certificates as one."""
    kinds = {e.kind.split("/")[0] if e.kind.startswith("certificate/") else e.kind for e in _failed(record)}
    return tuple(sorted(kinds))


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
    if record.verdict not in EXPLAINABLE:
        reason = record.reason.partition(FIRST_SEEN)[0]  # of a lost device any call may be the one that notices
        place = LINE.search(reason)
        words = NUMBER.sub("#", LINE.sub("", reason))
        return words + (place[0] if place else "")
    failed = failed_kinds(record)
    seen = f"fails {', '.join(failed)}" if failed else "fails"
    return f"{seen}; {'no named fault explains it' if record.explanation else NOT_TRIED}"


def _failed(record: Record) -> list[Evidence]:
    return [e for e in record.evidence if e.passed is False and e.decides]
