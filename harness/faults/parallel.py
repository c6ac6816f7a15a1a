"""Many faults over a few processes, one torch thread each.

Whatever ends the wait ends the processes too: a pool left by itself goes on until all that it was given is done.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import active_children, get_context
from typing import Any, TypeVar

import torch

from harness.errors import UsageError
from harness.faults.shots import Range
from harness.running.nursery import die_with_parent

_R = TypeVar("_R")

_range: Range | None = None
_sick = False


class _SickProcess(Exception):
    """A CUDA error has stuck to this process; what it says of later faults would be about that one."""


def _start(parent: int) -> None:
    global _range
    die_with_parent(parent)
    torch.set_num_threads(1)
    _range = Range()


def _run(work: Callable[..., _R], spec: str, arguments: tuple[Any, ...]) -> _R:
    global _sick
    if _sick:
        raise _SickProcess
    assert _range is not None, "the process was not started"
    result = work(_range, spec, *arguments)
    _sick = not _cuda_is_well()
    return result


def _cuda_is_well() -> bool:
    if not torch.cuda.is_available():
        return True
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return False
    return True


def map_faults(
    work: Callable[..., _R],
    specs: Sequence[str],
    arguments: tuple[Any, ...],
    *,
    processes: int,
    on_result: Callable[[Any], None] = lambda _result: None,
) -> list[_R]:
    """work(range, spec, *arguments) for every spec, in their order. `work` must be a module's function.

    A process whose CUDA context was lost is replaced, and what it was still to do is done elsewhere. Raises UsageError
    if a process dies. KeyboardInterrupt, and what `work` raises, end the processes at once: what `on_result` was told
    is what there is.
    """
    if processes == 1 and not torch.cuda.is_available():
        return _map_here(work, specs, arguments, on_result)
    results: dict[str, _R] = {}
    while len(results) < len(set(specs)):
        waiting = [spec for spec in dict.fromkeys(specs) if spec not in results]
        with _pool(processes) as pool:
            with _ctrl_c_held_back():  # a process starts when a task is given, and inherits what is held back
                futures = {pool.submit(_run, work, spec, arguments): spec for spec in waiting}
            for future in as_completed(futures):
                try:
                    results[futures[future]] = future.result()
                except _SickProcess:
                    continue
                on_result(results[futures[future]])
    return [results[spec] for spec in specs]


def _map_here(
    work: Callable[..., _R], specs: Sequence[str], arguments: tuple[Any, ...], on_result: Callable[[Any], None]
) -> list[_R]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        range_ = Range()
        done = []
        for spec in specs:
            done.append(work(range_, spec, *arguments))
            on_result(done[-1])
    finally:
        torch.set_num_threads(threads)
    return done


@contextmanager
def _pool(processes: int) -> Iterator[ProcessPoolExecutor]:
    before = set(active_children())
    with ProcessPoolExecutor(processes, get_context("spawn"), _start, (os.getpid(),)) as pool:
        try:
            yield pool
        except BaseException as problem:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in set(active_children()) - before:
                process.kill()
            if isinstance(problem, BrokenProcessPool):
                raise UsageError(
                    "a process that plants faults died: an adapter or a fault ended it, or memory ran out; "
                    "name fewer of them (-a, --fault) to see which."
                ) from None
            raise


@contextmanager
def _ctrl_c_held_back() -> Iterator[None]:
    """SIGINT waits until the end; processes started meanwhile never get it, and are ended by this one alone."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
