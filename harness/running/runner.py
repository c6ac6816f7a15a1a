"""Many jobs over several workers: fair, interruptible, and nothing that was found is lost."""

from __future__ import annotations

import dataclasses
import queue
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from harness.environment import core_count, gpu_ids
from harness.record import Record
from harness.running.options import Job, RunOptions
from harness.running.pool import WorkerProcess
from harness.verdict import Stability, Verdict


def default_workers(workers_per_gpu: int = 1) -> int:
    """One worker per GPU; without a GPU one per core."""
    gpus = len(gpu_ids())
    return gpus * workers_per_gpu if gpus else core_count()


def make_worker(index: int, python: str = sys.executable) -> WorkerProcess:
    """Worker number `index`, on its share of the GPUs, with one CPU thread: beside a GPU there are only small things
    to compute, which threads make slower, and without one there is a worker per core."""
    gpus = gpu_ids()
    return WorkerProcess(gpu=gpus[index % len(gpus)] if gpus else None, threads=1, python=python)


def examine_with_reruns(worker: WorkerProcess, job: Job, options: RunOptions) -> Record:
    """A finding is run twice more in a fresh process, to tell what kind of finding it is."""
    record = worker.examine(job, options)
    if not (options.rerun and record.verdict.is_finding):
        return record
    was_first = worker.cases_since_start <= 1
    worker.stop()
    quietly = dataclasses.replace(options, explain=False)
    again = [worker.examine(job, quietly) for _ in range(2)]
    verdicts = {r.verdict for r in again}
    if verdicts == {record.verdict}:
        stability = Stability.DETERMINISTIC
    elif verdicts == {Verdict.PASS} and not was_first:
        stability = Stability.STATE_DEPENDENT
    else:
        stability = Stability.FLAKY
    return record.replace(stability=stability)


def run_jobs(
    jobs: Sequence[Job],
    options: RunOptions,
    on_record: Callable[[Record], None],
    *,
    workers: int | None = None,
    workers_per_gpu: int = 1,
    python: str = sys.executable,
) -> None:
    """Examine every job, calling `on_record` in this thread as each ends, in no particular order.

    Raises UsageError at once if a job is bad use (an unknown adapter, a fault that fits nothing).
    KeyboardInterrupt ends the workers and is passed on.
    """
    count = min(workers or default_workers(workers_per_gpu), max(1, len(jobs)))
    todo: queue.SimpleQueue[Job] = queue.SimpleQueue()
    for job in jobs:
        todo.put(job)
    done: queue.SimpleQueue[Record | BaseException] = queue.SimpleQueue()
    halt = threading.Event()

    def work(worker: WorkerProcess) -> None:
        try:
            while not halt.is_set():
                try:
                    job = todo.get_nowait()
                except queue.Empty:
                    return
                done.put(examine_with_reruns(worker, job, options))
        except BaseException as problem:  # handed to the calling thread, which raises it
            done.put(problem)

    with ExitStack() as stack:
        for index in range(count):
            worker = make_worker(index, python)
            stack.callback(worker.stop)
            threading.Thread(target=work, args=(worker,), daemon=True).start()
        stack.callback(halt.set)
        for _ in jobs:
            result = done.get()
            if isinstance(result, BaseException):
                raise result
            on_record(result)
