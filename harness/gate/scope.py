"""What a gate is about: which jobs it is to see done, and which entries of the baseline it answers for."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Generic, TypeVar

from harness.gate.baseline import Baseline
from harness.gate.ledger import KnownFailure, Ledger
from harness.gate.selection import FaultTable, choose
from harness.gate.sharding import shard
from harness.record_files import Key, PlannedJob, RecordSet

Job = TypeVar("Job", bound=PlannedJob)


@dataclass(frozen=True, slots=True)
class Scope(Generic[Job]):
    """jobs: to be run, in this order; left_out: asked for and not run now (no time); not_launched: known to
    crash; expected: keys of the baseline to be covered; names: case names of planned keys; elsewhere: keys of
    the suite that this run does not answer for."""

    jobs: tuple[Job, ...]
    expected: frozenset[Key]
    left_out: tuple[Key, ...] = ()
    not_launched: Mapping[Key, KnownFailure] = field(default_factory=dict)
    names: Mapping[Key, str] = field(default_factory=dict)
    elsewhere: frozenset[Key] = frozenset()

    def wants(self, key: Key, adapters: Collection[str]) -> bool:
        """Is a record of this key to be judged? With a plan of jobs, what another shard did is not."""
        return _matches(key[1], adapters) and key not in self.elsewhere

    def missing(self, records: Collection[Key]) -> dict[Key, str]:
        """Planned keys that have no record, with the names of their cases."""
        return {key: name for key, name in self.names.items() if key not in records}


def recorded_seconds(baseline: Baseline) -> dict[Key, float]:
    return {key: entry.seconds for key, entry in baseline.items() if entry.seconds is not None}


def scope_of_jobs(
    jobs: Sequence[Job],
    baseline: Baseline,
    *,
    adapters: Collection[str] = (),
    suites: Collection[str] = (),
    part: tuple[int, int] | None = None,
    budget_seconds: float | None = None,
    table: FaultTable | None = None,
    ledger: Ledger = Ledger(),  # noqa: B008 - a frozen value
    versions: Mapping[str, str] | None = None,
    launch_known_crashes: bool = False,
    keyword: str | None = None,
) -> Scope[Job]:
    """The scope of a run of `jobs`.

    adapters are names or patterns, suites names, keyword what chose the jobs: the baseline's entries of others are
    not this run's business. Neither are those of another shard (`part` is (i, n)), or those that the budget leaves out,
    which are named in `left_out`.
    """
    seconds = recorded_seconds(baseline)
    mine = list(jobs) if part is None else shard(jobs, *part, seconds)
    crashes: dict[Key, KnownFailure] = {}
    if not launch_known_crashes:
        for job in mine:
            entry = ledger.crashes(job.case, job.adapter, versions or {})
            if entry is not None:
                crashes[_key(job)] = entry
    chosen = [job for job in mine if _key(job) not in crashes]
    left_out: tuple[Key, ...] = ()
    if budget_seconds is not None:
        chosen, rest = choose(chosen, budget_seconds, seconds, table or {})
        left_out = tuple(map(_key, rest))
    answered = {_key(job) for job in chosen} | crashes.keys()
    elsewhere = frozenset(_key(job) for job in jobs) - answered
    return Scope(
        jobs=tuple(chosen),
        expected=_expected(baseline, elsewhere, adapters, suites, keyword),
        left_out=left_out,
        not_launched=crashes,
        names={_key(job): job.case.name for job in chosen},
        elsewhere=elsewhere,
    )


def scope_of_records(
    loaded: RecordSet,
    baseline: Baseline,
    jobs: Sequence[PlannedJob] = (),
    *,
    adapters: Collection[str] = (),
    suites: Collection[str] = (),
    part: tuple[int, int] | None = None,
) -> Scope[PlannedJob]:
    """The scope of records made earlier: all of the baseline, less what their runs chose to leave out.

    `jobs` are a suite's, and say what a shard (`part`) answers for.
    """
    mine = jobs if part is None else shard(jobs, *part, recorded_seconds(baseline))
    elsewhere = frozenset(map(_key, jobs)) - set(map(_key, mine))
    left_out = tuple(key for key in loaded.left_out if _matches(key[1], adapters) and key not in elsewhere)
    excused = elsewhere | set(left_out)
    return Scope(
        jobs=(),
        expected=_expected(baseline, excused, adapters, suites),
        left_out=left_out,
        names={
            key: baseline[key].case_name if key in baseline else key[0]
            for key in loaded.planned
            if _matches(key[1], adapters) and key not in elsewhere
        },
        elsewhere=elsewhere,
    )


def has_keyword(keyword: str, case_name: str, case_id: str) -> bool:
    """What `-k` chooses: cases with it in their name, or at the start of their id."""
    return keyword in case_name or case_id.startswith(keyword)


def _expected(
    baseline: Baseline,
    excused: Collection[Key],
    adapters: Collection[str],
    suites: Collection[str],
    keyword: str | None = None,
) -> frozenset[Key]:
    return frozenset(
        key
        for key, entry in baseline.items()
        if key not in excused
        and _matches(entry.adapter, adapters)
        and (not suites or entry.suite is None or entry.suite in suites)
        and (not keyword or has_keyword(keyword, entry.case_name, entry.case_id))
    )


def _key(job: PlannedJob) -> Key:
    return (job.case.id, job.adapter)


def _matches(adapter: str, patterns: Collection[str]) -> bool:
    return not patterns or any(fnmatchcase(adapter, pattern) for pattern in patterns)
