"""Many faults over a few processes, one torch thread each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from typing import Any, TypeVar

import torch

from harness.faults.shots import Range

_R = TypeVar("_R")

_range: Range | None = None
_sick = False


class _SickProcess(Exception):
    """A CUDA error has stuck to this process; what it says of later faults would be about that one."""


def _start() -> None:
    global _range
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

    A process whose CUDA context was lost is replaced, and what it was still to do is done elsewhere.
    """
    if processes == 1 and not torch.cuda.is_available():
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        range_ = Range()
        done = []
        for spec in specs:
            done.append(work(range_, spec, *arguments))
            on_result(done[-1])
        torch.set_num_threads(threads)
        return done
    results: dict[str, _R] = {}
    while len(results) < len(set(specs)):
        waiting = [spec for spec in dict.fromkeys(specs) if spec not in results]
        with ProcessPoolExecutor(processes, get_context("spawn"), _start) as pool:
            futures = {pool.submit(_run, work, spec, arguments): spec for spec in waiting}
            for future in as_completed(futures):
                try:
                    results[futures[future]] = future.result()
                except _SickProcess:
                    continue
                on_result(results[futures[future]])
    return [results[spec] for spec in specs]
