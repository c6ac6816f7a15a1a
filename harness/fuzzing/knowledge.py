"""What an engine knows already: earlier findings, and whether a failure is one of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from cases.schema import AttentionCase
from harness.fuzzing.explaining import Culprits, Groups
from harness.fuzzing.finding import Finding, name_of
from harness.fuzzing.signature import kind_of, traits
from harness.record import Record

LOST = "crash: the worker died"
RUN_EVERY = 10  # of the cases that a known hang or lost process covers, one in so many is run all the same

Looks = tuple[str, frozenset[str]]  # (kind of failure, traits of its case)


def looks_of(record: Record) -> Looks:
    return kind_of(record), traits(record.case)


@dataclass(slots=True)
class Known:
    """A finding that was set aside.

    name:   of the finding
    fault:  the named fault that explains it, or None
    faults: named faults any of which reproduces it, likeliest first; empty where none does
    looks:  of failures that are this finding though no fault reproduces them
    """

    name: str
    fault: str | None
    faults: list[str]
    looks: list[Looks]

    @staticmethod
    def of(finding: Finding) -> Known:
        told = finding.explanation
        if told.fault is None:
            return Known(name_of(finding), None, [], [looks_of(finding.record)])
        return Known(name_of(finding), told.fault, [told.fault, *told.equals], [])

    def looks_like(self, kind: str, shape: frozenset[str]) -> bool:
        """For what no fault reproduces: the same kind, and everything that a case of this finding has."""
        return any(kind == known and needs <= shape for known, needs in self.looks)

    def prefer(self, fault: str) -> None:
        """Put the fault that reproduced one more case first."""
        self.faults.remove(fault)
        self.faults.insert(0, fault)


@dataclass(slots=True)
class Knowledge:
    """`ask` is Kernels.which_known for a failure, with the faults of each explained finding."""

    ask: Callable[[Record, Groups], Culprits | None]
    known: list[Known] = field(default_factory=list)
    passed_over: int = 0  # cases in a row that were not run

    def name_of(self, record: Record) -> str | None:
        """The earlier finding, or findings, that a failure belongs to, or None."""
        kind, shape = looks_of(record)
        for known in self.known:
            if known.looks_like(kind, shape):
                return known.name
        explained = [known for known in self.known if known.faults]
        culprits = self.ask(record, self.groups) if explained else None
        if culprits is None:
            return None
        for at, fault in culprits:
            explained[at].prefer(fault)
        return " and ".join(explained[at].name for at, _ in culprits)

    @property
    def groups(self) -> list[list[str]]:
        """The faults of each explained finding."""
        return [list(known.faults) for known in self.known if known.faults]

    def with_fault(self, fault: str | None) -> Known | None:
        """The finding that this fault explains."""
        return next((known for known in self.known if fault is not None and known.fault == fault), None)

    def add(self, finding: Finding, *failures: Record) -> None:
        """Set a finding aside; what it was shrunk from and to is known afterwards, whatever reproduces it or not."""
        self.known.append(Known.of(finding))
        self.learn(self.known[-1], *failures)

    def learn(self, known: Known, *failures: Record) -> None:
        """Failures that belong to a finding: by their looks, where its faults do not give them."""
        known.looks += [looks_of(failure) for failure in failures if self.name_of(failure) is None]

    def is_passed_over(self, case: AttentionCase) -> bool:
        """True for a case that need not be run: a known hang or lost process covers it, and each costs a worker."""
        shape = traits(case)
        lethal = (
            needs for known in self.known for kind, needs in known.looks if kind == "timeout" or kind.startswith(LOST)
        )
        if not any(needs <= shape for needs in lethal):
            self.passed_over = 0
            return False
        self.passed_over += 1
        return self.passed_over % RUN_EVERY != 0
