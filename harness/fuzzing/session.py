"""A session: engines over workers, until the budget is spent or somebody presses Ctrl-C.

    reports/fuzz/SESSION/
        session.json      what was asked, what came of it
        records.jsonl     one record for each generated case, and for each finding's shrunk case
        shrinking.jsonl   the steps of shrinking
        coverage.json     edges and pairs of edges reached, per adapter
        findings/NAME/    see harness/fuzzing/findings.py

Each adapter has one engine for each of its workers. Engines share nothing but this folder, so the same
seed gives each of them the same cases again, however fast the others are; a finding that two of them
make is kept once.
"""

from __future__ import annotations

import dataclasses
import json
import os
import queue
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cases.draw_limits import find_profile
from harness.environment import gpu_ids, installed_versions
from harness.errors import UsageError
from harness.fuzzing.coverage import EdgeCount, beyond
from harness.fuzzing.drawing import cases_for
from harness.fuzzing.engine import Engine
from harness.fuzzing.engine_options import EngineOptions
from harness.fuzzing.finding import Finding
from harness.fuzzing.findings import add_repro, begin_finding
from harness.fuzzing.kernels import Kernels, WorkerKernels
from harness.fuzzing.limits import draw_limits
from harness.fuzzing.progress import FuzzProgress
from harness.record import Record, RecordWriter
from harness.record_files import replace_text
from harness.running.options import RunOptions
from harness.verdict import Verdict

FAREWELL = 5.0  # seconds that a case in flight is given when the session is interrupted


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """examples: new cases per adapter; minutes: for the whole session (None: no limit, for either)
    workers: processes (None: one per GPU, without a GPU one per adapter)"""

    adapters: tuple[str, ...]
    seed: int = 0
    profile: str = "quick"
    examples: int | None = None
    minutes: float | None = None
    workers: int | None = None
    workers_per_gpu: int = 1
    use_target: bool = False
    python: str = sys.executable

    def __post_init__(self) -> None:
        find_profile(self.profile)
        for name, least in (("examples", 1), ("workers", 1), ("workers_per_gpu", 1), ("seed", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise UsageError(f"--{name.replace('_', '-')} is {value}; give {least} or more.")
        if self.minutes is not None and not self.minutes > 0:
            raise UsageError(f"--minutes is {self.minutes}; give a positive number.")
        if self.examples is None and self.minutes is None:
            raise UsageError("a session needs an end; give --minutes or --examples.")


@dataclass(slots=True)
class SessionResult:
    """What came of a session. `coverage` by adapter; `folder` holds everything."""

    folder: Path
    findings: list[Finding] = field(default_factory=list)
    folders: list[Path] = field(default_factory=list)
    coverage: dict[str, EdgeCount] = field(default_factory=dict)
    verdicts: dict[Verdict, int] = field(default_factory=dict)
    cases: int = 0
    shrink_runs: int = 0
    seconds: float = 0.0
    interrupted: bool = False


MakeKernels = Callable[[str, RunOptions, int], Kernels]


class Session:
    """Runs once. The methods named on_* are called by engines, from their threads."""

    def __init__(
        self,
        options: SessionOptions,
        run_options: RunOptions,
        reports: Path,
        *,
        make_kernels: MakeKernels | None = None,
    ) -> None:
        self.options = options
        self.run_options = dataclasses.replace(run_options, explain=False)  # findings are explained, once shrunk
        self.folder = new_session_folder(reports)
        self.result = SessionResult(self.folder)
        self._make = make_kernels or self._worker
        self._halt = threading.Event()
        self._lock = threading.Lock()
        self._kernels: list[Kernels] = []
        self._records = RecordWriter(self.folder / "records.jsonl")
        self._steps = RecordWriter(self.folder / "shrinking.jsonl")

    def _worker(self, adapter: str, options: RunOptions, index: int) -> Kernels:
        return WorkerKernels(adapter, options, index, self.options.python, self._worker_count())

    # -- running -------------------------------------------------------------------------------
    def run(self) -> SessionResult:
        """Run every engine. Raises UsageError for an adapter that cannot be had; Ctrl-C ends the session early."""
        seconds = None if self.options.minutes is None else 60 * self.options.minutes
        examples = None if self.options.examples is None else self.options.examples * len(self.options.adapters)
        try:
            with FuzzProgress(examples, seconds) as self._progress:
                try:
                    self._write_session("running")  # from here on there is a session, which Ctrl-C ends
                    self._run_engines(seconds)
                except KeyboardInterrupt:  # a second one, or one while it was starting or ending
                    self.result.interrupted = True
                finally:
                    self.result.seconds = self._progress.elapsed
        finally:
            self._records.close()
            self._steps.close()
            self._write_session("interrupted" if self.result.interrupted else "ended")
            coverage = {name: count.to_json() for name, count in self.result.coverage.items()}
            replace_text(self.folder / "coverage.json", json.dumps(coverage, indent=1) + "\n")
        return self.result

    def _run_engines(self, seconds: float | None) -> None:
        shares = self._shares()
        workers = min(self._worker_count(), len(shares))
        todo: queue.SimpleQueue[tuple[str, int, int]] = queue.SimpleQueue()
        for share in shares:
            todo.put(share)
        # With more adapters than workers, each has its part of the time.
        each = None if seconds is None else seconds * workers / len(shares)
        problems: list[BaseException] = []

        # Not Thread.join: up to Python 3.12, one that Ctrl-C interrupts takes the thread for ended (bpo-45274).
        ended = [threading.Event() for _ in range(workers)]

        def work(index: int) -> None:
            try:
                while not self._halt.is_set():
                    try:
                        adapter, shard, of = todo.get_nowait()
                    except queue.Empty:
                        return
                    self._run_engine(adapter, shard, of, index, each)
            except BaseException as problem:  # raised again in the thread that called run()
                if not self._halt.is_set():  # else its worker was ended under it
                    problems.append(problem)
                    self._halt.set()
            finally:
                ended[index].set()

        threads = [threading.Thread(target=work, args=(index,), daemon=True) for index in range(workers)]
        try:
            for thread in threads:
                thread.start()
            for end in ended:
                while not end.wait(0.2):
                    pass
        except KeyboardInterrupt:
            self.result.interrupted = True
            self._halt.set()
            self._progress.tell("interrupted: ending the cases in flight; again Ctrl-C to end at once")
            for thread, end in zip(threads, ended, strict=True):
                if thread.ident is not None:  # else Ctrl-C came before it was started
                    end.wait(FAREWELL / len(ended))
        finally:
            for kernels in self._kernels:
                kernels.stop()
            for thread, end in zip(threads, ended, strict=True):
                if thread.ident is not None:
                    end.wait(FAREWELL)
        if problems:
            raise problems[0]

    def _run_engine(self, adapter: str, shard: int, of: int, index: int, seconds: float | None) -> None:
        kernels = self._make(adapter, self.run_options, index)
        with self._lock:
            self._kernels.append(kernels)
        try:
            declared = kernels.declaration()
            limits = draw_limits(declared)
            with self._lock:
                count = EdgeCount(beyond(limits, find_profile(self.options.profile)))
                self.result.coverage.setdefault(adapter, count)
            examples = self.options.examples
            options = EngineOptions(
                adapter=adapter,
                profile=self.options.profile,
                seed=self.options.seed,
                shard=shard,
                examples=None if examples is None else examples // of + (shard < examples % of),
                seconds=seconds,
                use_target=self.options.use_target,
            )
            cases = cases_for(declared, self.options.profile, kernels.mend)
            Engine(cases, kernels, options, self.run_options, self, self._halt).run()
        finally:
            kernels.stop()

    def _worker_count(self) -> int:
        gpus = len(gpu_ids())
        default = gpus * self.options.workers_per_gpu if gpus else len(self.options.adapters)
        return self.options.workers or default

    def _shares(self) -> list[tuple[str, int, int]]:
        """(adapter, shard, of how many): each adapter's equal part of the workers, at least one."""
        adapters = self.options.adapters
        of = max(1, self._worker_count() // len(adapters))
        return [(adapter, shard, of) for shard in range(of) for adapter in adapters]

    # -- what engines tell ---------------------------------------------------------------------
    def on_record(self, record: Record) -> None:
        record = record.replace(suite="fuzz")
        with self._lock:
            self._records.write(record)
            self.result.cases += 1
            self.result.verdicts[record.verdict] = self.result.verdicts.get(record.verdict, 0) + 1
            self.result.coverage.setdefault(record.adapter, EdgeCount()).add(record.case)
            if record.verdict is Verdict.ERROR:
                self._progress.tell(f"ERROR {record.adapter} {record.case.id}: {record.reason}")
            self._show()

    def on_shrink(self, record: Record) -> None:
        with self._lock:
            self._steps.write(record.replace(suite="fuzz-shrinking"))
            self.result.shrink_runs += 1
            self._show()

    def on_finding(self, finding: Finding) -> None:
        with self._lock:
            if any(finding.is_same(other) for other in self.result.findings):
                return
            self._records.write(finding.record.replace(suite="fuzz"))
            folder = begin_finding(self.folder / "findings", finding)
            self.result.findings.append(finding)
            self.result.folders.append(folder)
            told = finding.explanation.lines[0] if finding.explanation.lines else finding.record.reason
            self._progress.tell(
                f"finding {len(self.result.findings)}: {finding.record.verdict} {finding.record.adapter} on "
                f"{finding.record.case.name}\n  {told}\n  {folder}"
            )
        add_repro(folder, finding, self.options.python, self._halt.is_set)  # runs a script: not under the lock

    def _show(self) -> None:
        result = self.result
        counts = list(result.coverage.values())
        self._progress.show(
            result.cases,
            result.shrink_runs,
            len(result.findings),
            sum(count.reached for count in counts),
            sum(len(count.within) for count in counts),
        )

    # -- session.json --------------------------------------------------------------------------
    def _write_session(self, state: str) -> None:
        result = self.result
        body: dict[str, Any] = {
            "state": state,
            "options": dataclasses.asdict(self.options),
            "run_options": self.run_options.to_json(),
            "workers": self._worker_count(),
            "versions": installed_versions(),
            "cases": result.cases,
            "shrink_runs": result.shrink_runs,
            "seconds": round(result.seconds, 1),
            "verdicts": {str(verdict): count for verdict, count in sorted(result.verdicts.items())},
            "findings": [folder.name for folder in result.folders],
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        replace_text(self.folder / "session.json", json.dumps(body, indent=1) + "\n")


def new_session_folder(reports: Path) -> Path:
    """`reports`/fuzz/YYYYmmdd-HHMMSS-PID, created. Raises UsageError if it cannot be."""
    stem = f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{os.getpid()}"
    for number in range(1, 1000):
        folder = reports / "fuzz" / (stem if number == 1 else f"{stem}-{number}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as problem:
            raise UsageError(f"cannot write to {reports}: {problem.strerror}; give --reports DIR.") from None
        return folder
    raise UsageError(f"{reports / 'fuzz'} holds a thousand sessions of this second; give --reports DIR.")
