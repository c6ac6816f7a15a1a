"""The engine: Hypothesis draws cases for one adapter, shrinks what fails, sets it aside, and goes on.

A round draws until a case fails in a way that is not known, shrinks it, confirms it in a fresh process,
explains it, and adds it to what is known. Drawing and shrinking are two calls of Hypothesis over one
example database, because a single one decides by the clock how long it looks on after a first failure,
and a seed must give the same cases again.

Every case is run once and its record kept, so Hypothesis never sees a result change; whether a finding
is flaky is asked at its end, by running it again.
"""

from __future__ import annotations

import dataclasses
import hashlib
import threading
import time
from dataclasses import dataclass, field

from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings, target
from hypothesis.database import ExampleDatabase, MultiplexedDatabase
from hypothesis.errors import Unsatisfiable
from hypothesis.strategies import SearchStrategy

from cases.schema import AttentionCase
from harness.diagnosis.explaining import Explanation
from harness.errors import UsageError
from harness.fuzzing.database import FoundInRound, WriteOnly
from harness.fuzzing.engine_options import EngineOptions, Listener
from harness.fuzzing.explaining import Culprits, Groups
from harness.fuzzing.finding import Finding, size_of
from harness.fuzzing.kernels import Kernels
from harness.fuzzing.knowledge import Knowledge, Known
from harness.fuzzing.polishing import polish
from harness.fuzzing.signature import CaseFails, edge_of, failure_type, kind_of
from harness.record import Record
from harness.running.options import RunOptions
from harness.verdict import Stability, Verdict

ROUND = 2000  # draws of one call of Hypothesis; its tree of what was drawn grows with them
IDLE_ROUNDS = 3  # rounds in a row without a new case after which there is nothing left to draw
HANG_LIMIT = 5.0  # seconds: the least that a case is given once one has hung
INTERRUPTED = Explanation(("not explained: the session was interrupted.",))
MOST_WITNESSES = 8
LOST_IN_A_ROW = 300  # cases in a row that a known hang or lost process covers, after which a session gives up


class _Enough(BaseException):
    """Ends a call of Hypothesis from inside: the budget is spent, or somebody pressed Ctrl-C."""


@dataclass(slots=True)
class _Seen:
    """What a case gave. `known` is the finding it belongs to, asked when `asked` findings were known."""

    record: Record | None  # None: a PASS
    known: str | None = None
    asked: int = 0


@dataclass(slots=True)
class Engine:
    """Fuzzes one adapter through `kernels`. `run` may be called once."""

    cases: SearchStrategy[AttentionCase]
    kernels: Kernels
    options: EngineOptions
    run_options: RunOptions
    listener: Listener
    halt: threading.Event = field(default_factory=threading.Event)
    known: tuple[Known, ...] = ()

    knowledge: Knowledge = field(init=False)
    examples: int = 0
    findings: list[Finding] = field(default_factory=list)
    _seen: dict[str, _Seen] = field(default_factory=dict)
    _shrinking: bool = False
    _shrink_runs: int = 0
    _shrink_until: float = 0.0
    _first: dict[str, Record] = field(default_factory=dict)  # by kind, within a round
    _trail: list[_Seen] = field(default_factory=list)  # what failed while shrinking, within a round
    _until: float = float("inf")
    _slowest: float = 0.0
    _hung: bool = False

    def __post_init__(self) -> None:
        self.knowledge = Knowledge(self._which_known)
        self.knowledge.known += self.known

    def run(self) -> list[Finding]:
        """Rounds until the budget is spent, `halt` is set, or there is nothing left to draw."""
        if self.options.seconds is not None:
            self._until = time.monotonic() + self.options.seconds
        number = idle = 0
        try:
            while idle < IDLE_ROUNDS:
                before = self.examples
                self._round(number)
                number += 1
                idle = idle + 1 if self.examples == before else 0
                if self.options.most_findings is not None and len(self.findings) >= self.options.most_findings:
                    break
        except _Enough:
            pass
        return self.findings

    # -- rounds --------------------------------------------------------------------------------
    def _round(self, number: int) -> None:
        self._first.clear()
        self._trail.clear()
        found, shared = FoundInRound(), self.options.database
        reuse = () if shared is None else (Phase.reuse,)
        climb = (Phase.target,) if self.options.use_target else ()
        database = found if shared is None else MultiplexedDatabase(found, shared)
        try:
            failing = self._call((*reuse, Phase.generate, *climb), database, number)
        except _Enough:
            for record in self._first.values():  # seen, but Hypothesis had not told it yet
                self._settle(record, self.examples, stopped=True)
            raise
        if not failing:
            return
        drawn = self.examples
        self._shrinking, self._shrink_runs = True, 0
        self._shrink_until = time.monotonic() + self.options.shrink_seconds
        stopped = False
        try:
            database = found if shared is None else MultiplexedDatabase(found, WriteOnly(shared))
            failing = self._call((Phase.reuse, Phase.shrink), database, number) or failing
            failing = [self._polished(record) for record in failing]
        except _Enough:
            stopped, failing = True, self._smallest(failing)
        finally:
            self._shrinking = False
        for record in failing:
            self._settle(record, drawn, stopped)
        if stopped:
            raise _Enough

    def _call(self, phases: tuple[Phase, ...], database: ExampleDatabase, number: int) -> list[Record]:
        """One call of Hypothesis. Records that failed, one for each kind; [] if nothing did."""

        def check(case: AttentionCase) -> None:
            self._check(case)

        # `seed` turns the database off, so the settings that name one come after it.
        test = settings(
            max_examples=ROUND,
            phases=phases,
            database=database,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            verbosity=Verbosity.quiet,
            report_multiple_bugs=True,
            print_blob=False,
        )(seed(self._seed_of(number))(given(self.cases)(check)))
        try:
            test()
        except CaseFails as failure:
            return [failure.record]
        except BaseExceptionGroup as several:
            return [failure.record for failure in several.exceptions if isinstance(failure, CaseFails)]
        except UsageError:
            self._end_if_halted()
            raise
        except Unsatisfiable:
            raise UsageError(
                f"nothing that adapter {self.options.adapter} takes can be drawn in profile "
                f"{self.options.profile}; widen its capabilities."
            ) from None
        return []

    def _end_if_halted(self) -> None:
        """A session that ends takes the workers away; that none can be had then says nothing."""
        if self.halt.is_set():
            raise _Enough from None

    def _seed_of(self, number: int) -> int:
        text = f"{self.options.seed}/{self.options.shard}/{number}/{self.options.profile}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")

    def _polished(self, record: Record) -> Record:
        """The simplest case in reach of what Hypothesis left that fails in the same way."""
        kind, best = kind_of(record), record

        def fails(case: AttentionCase) -> bool:
            nonlocal best
            try:
                if self.kernels.mend(case) != case:  # not supported as it is
                    return False
                self._check(case)
            except CaseFails as failure:
                if kind_of(failure.record) == kind:
                    best = failure.record
                    return True
            return False

        polish(record.case, fails)
        return best

    # -- one case ------------------------------------------------------------------------------
    def _check(self, case: AttentionCase) -> None:
        """What Hypothesis calls: returns for a case that is right or known, raises for a new failure."""
        if self.halt.is_set():
            raise _Enough
        seen = self._seen.get(case.id)
        if seen is None:
            seen = self._shrink_step(case) if self._shrinking else self._draw(case)
        if seen is None or seen.record is None:
            return
        self._ask(seen)
        if seen.known is None:
            kind = kind_of(seen.record)
            self._first.setdefault(kind, seen.record)
            raise failure_type(kind)(seen.record)

    def _draw(self, case: AttentionCase) -> _Seen | None:
        options = self.options
        if (options.examples is not None and self.examples >= options.examples) or time.monotonic() > self._until:
            raise _Enough
        if self.knowledge.is_passed_over(case):
            if self.knowledge.passed_over >= LOST_IN_A_ROW:
                raise _Enough
            return None
        record = self._run(case)
        self.examples += 1
        seen = self._remember(record)
        self.listener.on_record(self._with_known(record, seen))
        if options.use_target and record.verdict is Verdict.PASS:
            _aim(record)
        return seen

    def _shrink_step(self, case: AttentionCase) -> _Seen | None:
        """None, which counts as right and ends the shrinking soon, once its budget is spent."""
        if self._shrink_runs >= self.options.shrink_runs or time.monotonic() > self._shrink_until:
            return None
        record = self._run(case)
        self._shrink_runs += 1
        seen = self._remember(record)
        self.listener.on_shrink(record)
        return seen

    def _run(self, case: AttentionCase) -> Record:
        try:
            record = self.kernels.examine(case, self._run_options())
        except UsageError:
            self._end_if_halted()
            raise
        if self.halt.is_set():  # its process may have been ended under it, which says nothing about the case
            raise _Enough
        if record.verdict is Verdict.TIMEOUT:
            self._hung = True
        else:
            self._slowest = max(self._slowest, record.seconds.get("total", 0.0) - record.seconds.get("prepare", 0.0))
        return record

    def _run_options(self) -> RunOptions:
        """The time limit, lowered once a case has hung: shrinking a hang waits for it at every step."""
        options = self.run_options
        if not self._hung:
            return options
        limit = min(options.time_limit, max(HANG_LIMIT, 10 * self._slowest))
        return dataclasses.replace(options, time_limit=limit)

    def _remember(self, record: Record) -> _Seen:
        seen = _Seen(record if record.verdict.is_finding else None)
        self._ask(seen)
        self._seen[record.case.id] = seen
        if self._shrinking and seen.record is not None:
            self._trail.append(seen)
        return seen

    def _which_known(self, failure: Record, groups: Groups) -> Culprits | None:
        try:
            return self.kernels.which_known(failure, groups, self._run_options())
        except UsageError:
            if not self.halt.is_set():
                raise
            return None  # told as a finding of its own rather than not at all

    def _ask(self, seen: _Seen) -> None:
        """Which finding a failure belongs to, unless that was asked since the last one was made."""
        now = len(self.knowledge.known)
        if seen.record is not None and seen.asked < now:
            seen.known, seen.asked = self.knowledge.name_of(seen.record), now

    def _with_known(self, record: Record, seen: _Seen) -> Record:
        return record if seen.known is None else record.replace(explanation=(f"the same as finding {seen.known}",))

    # -- findings ------------------------------------------------------------------------------
    def _smallest(self, failing: list[Record]) -> list[Record]:
        """The best that an interrupted shrinking had reached, by kind."""
        found = []
        for first in failing:
            found.append(min([*self._on_the_way(kind_of(first)), first], key=lambda record: size_of(record.case)))
        return found

    def _on_the_way(self, kind: str) -> list[Record]:
        """What failed in this kind while this round shrank, and is no earlier finding. Records of rounds before are
        not asked again: one of them, smaller, would be taken for the new finding and dropped as a known one."""
        return [
            seen.record
            for seen in self._trail
            if seen.record is not None and seen.known is None and kind_of(seen.record) == kind
        ]

    def _settle(self, record: Record, drawn: int, stopped: bool) -> None:
        """Confirm, explain, set aside; a finding that turns out to be an earlier one only teaches its looks."""
        if self.knowledge.name_of(record) is not None:  # another kind of what was settled a moment ago
            return
        original = self._first.get(kind_of(record), record)
        confirmed, told = record, INTERRUPTED
        if not stopped:
            try:
                confirmed = self._confirm(record, original)
                told = self.kernels.explain(
                    confirmed,
                    self._witnesses(record, original),
                    self.knowledge.groups,
                    self._run_options(),
                    self.options.explain_seconds,
                )
            except UsageError:
                if not self.halt.is_set():
                    raise
        if self.halt.is_set():
            confirmed, told = record, INTERRUPTED
        finding = self._finding(confirmed.replace(explanation=told.lines), original, told, drawn)
        earlier = self.knowledge.with_fault(told.fault)
        if earlier is None:
            self.findings.append(finding)
            self.listener.on_finding(finding)
        if self.halt.is_set():
            return
        if earlier is None:
            self.knowledge.add(finding, confirmed, record)
        else:  # its fault explains this case too, but did not reproduce it when asked
            self.knowledge.learn(earlier, confirmed, record)
            for seen in self._seen.values():
                seen.asked = 0

    def _witnesses(self, record: Record, original: Record) -> list[Record]:
        """Cases that failed in the same way on the way to `record`, from small to large, the original last."""
        trail = sorted(self._on_the_way(kind_of(record)), key=lambda failed: size_of(failed.case))
        some = [trail[at * (len(trail) - 1) // MOST_WITNESSES] for at in range(MOST_WITNESSES)] if trail else []
        return [*{witness.case: witness for witness in (*some, original)}.values()]

    def _confirm(self, record: Record, original: Record) -> Record:
        """The shrunk case run again in a fresh process; the original if that alone still fails."""
        again = self.kernels.confirm(record.case, self._run_options())
        if again.verdict.is_finding:
            return again
        if original.case != record.case:
            first = self.kernels.confirm(original.case, self._run_options())
            if first.verdict.is_finding:
                return first
        return record.replace(stability=Stability.FLAKY)

    def _finding(self, record: Record, original: Record, told: Explanation, drawn: int) -> Finding:
        return Finding(
            adapter=self.options.adapter,
            kind=kind_of(record),
            edge=edge_of(record.case),
            record=record,
            original=original,
            explanation=told,
            examples=drawn,
            shrink_runs=self._shrink_runs,
        )


def _aim(record: Record) -> None:
    """Tell Hypothesis how near a right case came to its bound."""
    for evidence in record.evidence:
        if evidence.kind == "bound" and evidence.measure.get("ratio") is not None:
            target(float(evidence.measure["ratio"]), label="error over bound")
