"""What to run when there is little time: the jobs that catch most per second, first.

What a job catches is known from the fault table (which planted faults each case was seen to catch).
Without a table, the features of its case stand in: a new mode, a window shorter than the prefix or the
extend, another page order are where faults have shown.

The choice is greedy set cover: each next job is the one with most faults that nothing chosen before it
catches on the same adapter, over its seconds. Greedy is within 1 - 1/e of the best choice for a budget,
since what a job adds can only shrink as others are chosen.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import TypeVar

from cases.schema import AttentionCase, Request
from harness.errors import UsageError
from harness.gate.sharding import UNKNOWN_SECONDS
from harness.record_files import Key, PlannedJob

Job = TypeVar("Job", bound=PlannedJob)

FAULT_TABLE_VERSION = 1
FaultTable = Mapping[str, frozenset[str]]  # case id -> names of the faults that it catches


def read_fault_table(path: Path) -> FaultTable:
    """`{"fault_table_version": 1, "caught": {fault: [case id, ...]}}`; an absent file is an empty table."""
    if not path.exists():
        return {}
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
        if body["fault_table_version"] != FAULT_TABLE_VERSION:
            raise UsageError(
                f"{path} has fault_table_version {body['fault_table_version']!r}, this release reads "
                f"{FAULT_TABLE_VERSION}; make it again."
            )
        table: dict[str, set[str]] = {}
        for fault, cases in body["caught"].items():
            for case_id in cases:
                table.setdefault(case_id, set()).add(fault)
    except UsageError:
        raise
    except (OSError, KeyError, TypeError, AttributeError, ValueError):
        raise UsageError(f"{path} is no fault table; make it again, or remove it.") from None
    return {case_id: frozenset(faults) for case_id, faults in table.items()}


def _relations(request: Request, window_left: int | None) -> frozenset[str]:
    """How prefix, extend and window of one request lie to each other."""
    prefix, extend = request
    found = {"no prefix" if prefix == 0 else "prefix", "no extend" if extend == 0 else "extend"}
    if window_left is not None:
        found.add("window longer than all" if window_left >= prefix + extend - 1 else "window bites")
        found.add("prefix past the window" if prefix > window_left else "prefix inside the window")
        found.add("extend past the window" if extend > window_left + 1 else "extend inside the window")
    return frozenset(found)


def features(case: AttentionCase) -> frozenset[str]:
    """What is special about a case, in words: stand-ins for the faults that it may catch."""
    found = {f"mode {case.mode}", f"page order {case.page_order}", f"dtype {case.dtype}", f"kv {case.kv_dtype}"}
    found |= {f"recipe {case.recipe}", f"layout {case.kv_layout}", f"group {case.group_size}"}
    found |= {f"page size {'1' if case.page_size == 1 else 'above 1'}", f"head dim {case.head_dim_qk}"}
    for name in ("causal", "sinks"):
        found.add(f"{name} {getattr(case, name)}")
    found.add(f"softcap {case.logits_soft_cap is not None}")
    found.add(f"graph {case.execution.uses_graph}")
    found.add(f"splits {case.execution.num_splits}")
    for request in case.requests:
        relations = _relations(request, case.window_left)
        found |= relations
        # Pairs: that a prefix is past the window matters with and without an extend past it.
        found |= {f"{case.mode}: {' & '.join(sorted(relations))}"}
    if len(case.requests) > 1:
        found.add("several requests")
    return frozenset(found)


def choose(
    jobs: Sequence[Job], budget_seconds: float, seconds: Mapping[Key, float], table: FaultTable
) -> tuple[list[Job], list[Job]]:
    """(chosen, in the order to run them; left out), the chosen's recorded seconds within the budget.

    Once everything that can be caught is covered, what time is left goes to the shortest jobs.
    """
    typical = median(seconds.values()) if seconds else UNKNOWN_SECONDS

    def cost(job: Job) -> float:
        return max(seconds.get((job.case.id, job.adapter), typical), 1e-3)

    catches = [
        frozenset(
            (job.adapter, what) for what in (table.get(job.case.id, frozenset()) if table else features(job.case))
        )
        for job in jobs
    ]
    covered: set[tuple[str, str]] = set()
    # Lazy greedy: a job's gain only shrinks, so one whose gain is still what it was when pushed is the best.
    heap = [(-len(catches[n]) / cost(job), n, len(catches[n])) for n, job in enumerate(jobs)]
    heapq.heapify(heap)
    chosen: list[Job] = []
    left_out: list[int] = []
    left = budget_seconds
    while heap:
        _, n, gain = heapq.heappop(heap)
        now = len(catches[n] - covered)
        if now != gain:
            heapq.heappush(heap, (-now / cost(jobs[n]) if now else 0.0, n, now))
            continue
        if gain == 0:
            heap.append((0.0, n, 0))
            break
        if cost(jobs[n]) <= left:
            chosen.append(jobs[n])
            covered |= catches[n]
            left -= cost(jobs[n])
        else:
            left_out.append(n)
    for _, n, _ in sorted(heap, key=lambda item: (cost(jobs[item[1]]), item[1])):
        if cost(jobs[n]) <= left:
            chosen.append(jobs[n])
            left -= cost(jobs[n])
        else:
            left_out.append(n)
    return chosen, [jobs[n] for n in sorted(left_out)]
