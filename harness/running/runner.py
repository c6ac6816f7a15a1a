"""Many jobs over several workers: fair, interruptible, and nothing that was found is lost."""

from __future__ import annotations

import dataclasses
import queue
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from harness.environment import core_count, gpu_ids
from harness.errors import UsageError
from harness.record import Record
from harness.running import sharing
from harness.running.options import Job, RunOptions
from harness.running.pool import WorkerClosed, WorkerProcess
from harness.running.together import MOST_CASES
from harness.verdict import Stability, Verdict


def default_workers(cases: int, per_gpu: int | None = None) -> int:
    """`per_gpu` for each GPU, or as many as are worth it; without a GPU one per core."""
    gpus = len(gpu_ids())
    return gpus * (per_gpu or sharing.workers_per_gpu(cases)) if gpus else core_count()


def make_worker(index: int, python: str = sys.executable, of: int = 1) -> WorkerProcess:
    """Worker number `index` `of` so many, on its share of the GPUs, with one CPU thread: beside a GPU there are only
    small things to compute, which threads make slower, and without one there is a worker per core."""
    gpus = gpu_ids()
    gpu = gpus[index % len(gpus)] if gpus else None
    return WorkerProcess(gpu=gpu, threads=1, compilers=sharing.compilers(of), python=python)


Held = dict[int, Record]  # records that are judged and wait to be run again, by their job's identity
NAMED = 6  # cases that were not run, in a sentence


class NotAllRun(UsageError):
    """An adapter could not be had any more in the middle of a run; what it says names the cases that were not run."""


@dataclass(frozen=True, slots=True)
class GivenUp:
    """Jobs of one adapter that are not run, for it could be loaded before and cannot any more."""

    adapter: str
    why: str
    jobs: Sequence[Job]

    def __str__(self) -> str:
        named = ", ".join(job.case.name for job in self.jobs[:NAMED])
        more = f" and {len(self.jobs) - NAMED} more" if len(self.jobs) > NAMED else ""
        return f"{self.why} {len(self.jobs)} cases of {self.adapter} were not run: {named}{more}."


def examine_group(
    worker: WorkerProcess, jobs: Sequence[Job], options: RunOptions, put: Callable[[Job, Record], None], held: Held
) -> None:
    """Puts the records of jobs of one adapter: examined together, or one by one where that lost the process.

    What passes is put as soon as it is judged, findings once they were run again; meanwhile they are in `held`.
    """
    settled: set[int] = set()

    def on_settled(index: int, record: Record) -> None:
        settled.add(index)
        put(jobs[index], record)

    records = worker.examine_many(jobs, options, on_settled) if len(jobs) > 1 else None
    left = [(index, job) for index, job in enumerate(jobs) if index not in settled]
    if records is not None:
        held.update((id(job), records[index]) for index, job in left)
    for _, job in left:
        first = held[id(job)] if id(job) in held else held.setdefault(id(job), worker.examine(job, options))
        put(job, rerun(worker, job, options, first))
        del held[id(job)]


def examine_with_reruns(worker: WorkerProcess, job: Job, options: RunOptions) -> Record:
    """A finding is run twice more in a fresh process, to tell what kind of finding it is."""
    return rerun(worker, job, options, worker.examine(job, options))


def rerun(worker: WorkerProcess, job: Job, options: RunOptions, record: Record) -> Record:
    """The record, its stability told if it is a finding; unknown, and its reason says so, if it cannot be run again."""
    if not (options.rerun and record.verdict.is_finding):
        return record
    was_first = worker.cases_since_start <= 1
    worker.renew()
    quietly = dataclasses.replace(options, explain=False)
    try:
        again = [worker.examine(job, quietly) for _ in range(2)]
    except WorkerClosed:
        raise
    except UsageError as problem:  # no fresh process can have the adapter: a lock, a licence, a file that changed
        return record.replace(reason=f"{record.reason}; it could not be run again: {str(problem).rstrip('.')}")
    verdicts = {r.verdict for r in again}
    if verdicts == {record.verdict}:
        stability = Stability.DETERMINISTIC
    elif verdicts == {Verdict.PASS} and not was_first:
        stability = Stability.STATE_DEPENDENT
    else:
        stability = Stability.FLAKY
    return record.replace(stability=stability)


Done = queue.SimpleQueue[Record | GivenUp | BaseException]


class _Todo:
    """Jobs not yet begun, handed out to `workers` by groups of one adapter (of one if not `together`).

    Groups shrink towards the end, so that no worker is left with many while the others have none.
    """

    def __init__(self, jobs: Sequence[Job], workers: int, together: bool) -> None:
        self._jobs = deque(jobs)
        self._workers = workers
        self._most = MOST_CASES if together else 1
        self._lock = threading.Lock()

    def take(self) -> list[Job]:
        """The next group; empty when nothing is left."""
        with self._lock:
            group: list[Job] = []
            most = min(self._most, max(1, len(self._jobs) // (2 * self._workers)))
            while self._jobs and len(group) < most and (not group or self._jobs[0].adapter == group[0].adapter):
                group.append(self._jobs.popleft())
            return group

    def give_up(self, adapter: str) -> list[Job]:
        """Takes all that is left of an adapter."""
        with self._lock:
            jobs = [job for job in self._jobs if job.adapter == adapter]
            self._jobs = deque(job for job in self._jobs if job.adapter != adapter)
            return jobs


def run_jobs(
    jobs: Sequence[Job],
    options: RunOptions,
    on_record: Callable[[Record], None],
    *,
    workers: int | None = None,
    workers_per_gpu: int | None = None,
    python: str = sys.executable,
) -> None:
    """Examine every job, calling `on_record` in this thread as each ends, in no particular order.

    Raises UsageError at once if a job is bad use (an unknown adapter, a fault that fits nothing), and NotAllRun at the
    end if an adapter that had given an answer could not be loaded again: the other adapters' jobs go on. Whatever else
    ends the run early, KeyboardInterrupt too, is passed on after `on_record` was told what is judged by then.
    """
    if any(given is not None and given < 1 for given in (workers, workers_per_gpu)):
        raise UsageError("--workers and --workers-per-gpu take a number of 1 or more.")
    count = min(workers or default_workers(len(jobs), workers_per_gpu), max(1, len(jobs)))
    todo = _Todo(jobs, count, together=options.fault is None and options.atol is None)
    done: Done = queue.SimpleQueue()
    halt = threading.Event()
    held: Held = {}
    worked: set[str] = set()  # adapters that gave an answer

    def work(worker: WorkerProcess) -> None:
        try:
            while not halt.is_set():
                group = todo.take()
                if not group:
                    return
                left = list(group)

                def put(job: Job, record: Record, left: list[Job] = left) -> None:
                    left.remove(job)
                    worked.add(job.adapter)
                    done.put(record)

                try:
                    examine_group(worker, group, options, put, held)
                except UsageError as problem:
                    adapter = group[0].adapter
                    if adapter not in worked or isinstance(problem, WorkerClosed):
                        raise
                    done.put(GivenUp(adapter, str(problem), (*left, *todo.give_up(adapter))))
        except BaseException as problem:  # handed to the calling thread, which raises it
            done.put(problem)

    with ExitStack() as stack:
        for index in range(count):
            worker = make_worker(index, python, count)
            stack.callback(worker.close)
            threading.Thread(target=work, args=(worker,), daemon=True).start()
        stack.callback(halt.set)
        given_up: list[GivenUp] = []
        awaited = len(jobs)
        try:
            while awaited:
                result = done.get()
                if isinstance(result, BaseException):
                    raise result
                if isinstance(result, GivenUp):
                    given_up.append(result)
                    awaited -= len(result.jobs)
                else:
                    awaited -= 1
                    on_record(result)
        except BaseException:
            for record in _judged_by_now(done, held):
                on_record(record)
            raise
    if given_up:
        raise NotAllRun(" ".join(map(str, given_up)))


def _judged_by_now(done: Done, held: Held) -> Iterator[Record]:
    """What no one has taken from `done`, then findings that were not run again yet: their stability is unknown."""
    seen = set()
    waiting = dict(held)  # first, for a record leaves it only once it is in `done`
    while not done.empty():
        record = done.get()
        if isinstance(record, Record):
            seen.add((record.case.id, record.adapter, record.suite))
            yield record
    for record in waiting.values():
        if (record.case.id, record.adapter, record.suite) not in seen:
            yield record
