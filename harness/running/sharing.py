"""How many workers share a GPU, where nobody says: several, if there is work for them and they fit.

One worker leaves a GPU idle for half of its time: Python launches the kernels of a small case more slowly than they run
(docs/performance.md). More of them take turns on it.
"""

from __future__ import annotations

from harness.environment import core_count, gpu_ids, least_shared_memory

MOST = 8  # on an H200, eight come within a fifth of what golden and kernels alone reach (mix `serving`)
CORES = 2  # of a worker: its own thread, and what its libraries start
MEMORY = 12 << 30  # bytes of a worker: context, libraries and kept golden answers, and its largest case
CASES = 64  # that a worker must have to be worth its start: on an H200, 400 cases took eight as long as one


def workers_per_gpu(cases: int) -> int:
    """For `cases` in all; 1 at least."""
    gpus = max(1, len(gpu_ids()))
    return max(1, min(MOST, core_count() // (CORES * gpus), least_shared_memory() // MEMORY, cases // (CASES * gpus)))


def compilers(workers: int) -> int:
    """Compilers that each of `workers` may start at once, so that all together are one for each core."""
    return max(1, core_count() // workers)
