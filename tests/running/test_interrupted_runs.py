"""What is judged is told at once, and is not lost when a run is interrupted, or an adapter cannot be loaded again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from cases import AttentionCase, Request
from harness.errors import UsageError
from harness.record import Record
from harness.running import runner
from harness.running.options import Job, RunOptions
from harness.running.pool import WorkerProcess
from harness.verdict import Verdict

FILE = Path(__file__).with_name("misbehaving.py")
CASE = AttentionCase(requests=(Request(9, 3), Request(0, 2)), window_left=4, page_size=4)
JOBS = [Job(CASE.replace(seed=seed), f"{FILE}:WrongOnSeed3") for seed in range(6)]


@pytest.fixture
def worker() -> Iterator[WorkerProcess]:
    process = WorkerProcess(threads=1)
    yield process
    process.close()


def test_what_passes_is_told_before_the_group_ends(worker: WorkerProcess) -> None:
    told: list[tuple[int, Record]] = []
    records = worker.examine_many(JOBS, RunOptions(), lambda index, record: told.append((index, record)))
    assert records is not None
    assert [index for index, _ in told] == [0, 1, 2, 4, 5]
    assert [record for _, record in told] == [records[index] for index in (0, 1, 2, 4, 5)]
    assert records[3].verdict is Verdict.WRONG


def test_a_worker_that_is_closed_stays_closed(worker: WorkerProcess) -> None:
    worker.start()
    worker.close()
    with pytest.raises(ValueError, match="after its end"):
        worker.examine(JOBS[0], RunOptions())


class Scripted:
    """A worker that passes all but one job of a group, and never comes back from running that one again."""

    def __init__(self) -> None:
        self.at_it, self.closed = threading.Event(), threading.Event()
        self.cases_since_start = 0

    def examine_many(
        self, jobs: Sequence[Job], options: RunOptions, on_settled: Callable[[int, Record], None]
    ) -> list[Record]:
        del options
        records = [Record(job.case, job.adapter, Verdict.WRONG if job.case.seed == 3 else Verdict.PASS) for job in jobs]
        for index, record in enumerate(records):
            if record.verdict is Verdict.PASS:
                on_settled(index, record)
        self.cases_since_start += len(jobs)
        return records

    def examine(self, job: Job, options: RunOptions) -> Record:
        del options
        if job.case.seed == 3:
            self.at_it.set()
            self.closed.wait()
        return Record(job.case, job.adapter, Verdict.PASS)

    def renew(self) -> None:
        """A finding is run again in a new process."""

    def close(self) -> None:
        self.closed.set()


def test_ctrl_c_keeps_what_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    scripted = Scripted()
    monkeypatch.setattr(runner, "make_worker", lambda index, python, of: scripted)
    records: list[Record] = []

    def on_record(record: Record) -> None:
        records.append(record)
        if len(records) == 3:  # in the middle, the others judged and the finding being run again
            assert scripted.at_it.wait(60)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        runner.run_jobs(JOBS * 2, RunOptions(), on_record, workers=1)
    assert scripted.closed.is_set()
    wrong = [record for record in records if record.verdict is Verdict.WRONG]
    assert [(record.case.seed, record.stability) for record in wrong] == [(3, None)]
    seeds = sorted(record.case.seed for record in records)
    assert set(seeds) == {0, 1, 2, 3, 4, 5}


class Once:
    """A worker whose adapter can be loaded by its first process only: seed 3 is wrong, and everything is alone."""

    def __init__(self, refused: str, problem: Exception) -> None:
        self.refused, self.problem = refused, problem
        self.cases_since_start, self.fresh = 0, True

    def examine_many(self, *_: object) -> None:
        return None

    def examine(self, job: Job, options: RunOptions) -> Record:
        del options
        self.cases_since_start += 1
        if not self.fresh and job.adapter == self.refused:
            raise self.problem
        return Record(job.case, job.adapter, Verdict.WRONG if job.case.seed == 3 else Verdict.PASS, "off")

    def renew(self) -> None:
        self.fresh = False

    def close(self) -> None:
        """Nothing to end."""


def of(adapter: str) -> list[Job]:
    return [Job(CASE.replace(seed=seed), adapter) for seed in (0, 3, 1, 2)]


def test_a_finding_stands_though_its_adapter_cannot_be_loaded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "make_worker", lambda index, python, of: Once("a", UsageError("device busy.")))
    records: list[Record] = []
    with pytest.raises(runner.NotAllRun, match=r"device busy. 2 cases of a were not run: .*, .*[^,]\.$"):
        runner.run_jobs(of("a") + of("b"), RunOptions(), records.append, workers=1)
    assert sorted((r.adapter, r.case.seed) for r in records) == [
        ("a", 0),
        ("a", 3),
        *(("b", seed) for seed in range(4)),
    ]
    wrong = {r.adapter: (r.reason, r.stability) for r in records if r.verdict is Verdict.WRONG}
    assert wrong["a"] == ("off; it could not be run again: device busy", None)
    assert wrong["b"][0] == "off"
    assert wrong["b"][1] is not None


def test_what_is_judged_is_kept_whatever_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "make_worker", lambda index, python, of: Once("a", RuntimeError("a bug")))
    records: list[Record] = []
    with pytest.raises(RuntimeError, match="a bug"):
        runner.run_jobs(of("a"), RunOptions(), records.append, workers=1)
    assert [(r.case.seed, r.verdict) for r in records] == [(0, Verdict.PASS), (3, Verdict.WRONG)]


def test_an_adapter_that_never_worked_is_bad_use(monkeypatch: pytest.MonkeyPatch) -> None:
    once = Once("a", UsageError("no such thing."))
    once.fresh = False
    monkeypatch.setattr(runner, "make_worker", lambda index, python, of: once)
    with pytest.raises(UsageError, match=r"^no such thing\.$"):
        runner.run_jobs(of("a"), RunOptions(), [].append, workers=1)
