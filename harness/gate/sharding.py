"""Splitting a suite over machines: every job in exactly one part, the parts of equal length in seconds."""

from __future__ import annotations

import heapq
import re
from collections.abc import Mapping, Sequence
from statistics import median
from typing import TypeVar

from harness.errors import UsageError
from harness.record_files import Key, PlannedJob

Job = TypeVar("Job", bound=PlannedJob)

UNKNOWN_SECONDS = 1.0  # for a job when nothing at all was recorded


def parse_shard(text: str) -> tuple[int, int]:
    """ "2/3" -> (2, 3). Raises UsageError."""
    found = re.fullmatch(r"(\d+)/(\d+)", text)
    index, count = (int(found[1]), int(found[2])) if found else (0, 0)
    if not 1 <= index <= count:
        raise UsageError(f"--shard is {text!r}; write it as i/n with i from 1 to n, such as 2/3.")
    return index, count


def shard(jobs: Sequence[Job], index: int, count: int, seconds: Mapping[Key, float]) -> list[Job]:
    """Part `index` (from 1) of `count`, in the order of `jobs`.

    The longest job goes to the emptiest part, then the next: no part is longer than the best split's by
    more than a third (Graham, 1969). Which job goes where depends on keys and recorded seconds alone, so
    machines that hold the same baseline agree without talking. Raises UsageError if index is not in 1..count.
    """
    if not 1 <= index <= count:
        raise UsageError(f"shard {index}/{count} does not exist; use i/n with i from 1 to n.")
    typical = median(seconds.values()) if seconds else UNKNOWN_SECONDS
    keys = {(job.case.id, job.adapter) for job in jobs}
    cost = {key: seconds.get(key, typical) for key in keys}
    # (seconds, jobs, part), the emptiest first; ties by jobs, so that jobs of no length are dealt out too.
    loads = [(0.0, 0, number) for number in range(count)]
    part: dict[Key, int] = {}
    for key in sorted(keys, key=lambda k: (-cost[k], k)):
        load, held, number = loads[0]
        part[key] = number
        heapq.heapreplace(loads, (load + cost[key], held + 1, number))
    return [job for job in jobs if part[job.case.id, job.adapter] == index - 1]
