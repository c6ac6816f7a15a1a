"""Several cases at a time through one adapter: drawn together, run one by one, compared together.

Each case keeps its own batch, plan and kernel call; only what the harness does around them is shared. What comes out
is the evidence of the case's own data where it holds without doubt. A case whose evidence does not, a group in which
anything raises, and whatever is outside `can_share`, are examined alone, as if nothing had been tried: so every verdict
but PASS, and every message, comes from harness/running/examine.py.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cases.recipes import LogicalData
from cases.schema import AttentionCase
from cases.together import merged, merged_data, numbers
from harness.adapters.protocol import Adapter, AttentionOutput
from harness.judging.compare import NO_LSE, check_shape, finite, largest_error, largest_ratio, lse_error, under_atol
from harness.judging.tolerances import default_atol, lse_tolerance
from harness.judging.traits import kernel_traits, row_sum_traits
from harness.judging.where import row_place
from harness.record import Record
from harness.running.examine import AdapterFailure, Examiner, Stopwatch, adapter_at_work, examine, synchronize
from harness.running.options import RunOptions
from harness.verdict import Evidence
from references.error_bounds import lse_bounds, row_bounds
from references.golden import GoldenOutput, golden_attention

MOST_CASES = 32
MOST_KEYS = 1 << 16  # of a group: beyond it launching is not what takes the time


@dataclass(frozen=True, slots=True)
class Own:
    """Evidence of one case's own data, and its share of the group's seconds by stage."""

    evidence: list[Evidence]
    seconds: dict[str, float]


def can_share(case: AttentionCase, adapter: Adapter, options: RunOptions) -> bool:
    """True if nothing of the case needs to be alone: no sinks (they are a case's own), no graph (its replay
    rewrites the output of the case before), no tolerance or fault of the user's."""
    return (
        options.evidence != "atol"
        and options.atol is None
        and options.fault is None
        and not case.sinks
        and not case.execution.uses_graph
        and case.total_kv <= MOST_KEYS // 2
        and adapter.capabilities.unsupported(case) is None
    )


def groups(cases: Sequence[AttentionCase], adapter: Adapter, options: RunOptions) -> Iterator[list[int]]:
    """Indices of `cases` that can be merged, each index in at most one group of two or more."""
    kinds: dict[AttentionCase, list[int]] = {}
    for index, case in enumerate(cases):
        if can_share(case, adapter, options):
            # Compared in one pass, so the level of poison, which decides nothing there, may differ.
            kinds.setdefault(numbers(case), []).append(index)
    for members in kinds.values():
        group: list[int] = []
        for index in members:
            keys = sum(cases[i].total_kv for i in group) + cases[index].total_kv
            if group and (keys > MOST_KEYS or len(group) == MOST_CASES):
                yield group
                group = []
            group.append(index)
        yield group


def examine_together(
    cases: Sequence[AttentionCase],
    adapter: Adapter,
    options: RunOptions,
    device: torch.device,
    *,
    announce: Callable[[str], None] = lambda _stage: None,
    exact_stages: bool = False,
) -> list[Record]:
    """The records that `examine` gives for each of `cases`, in their order.

    Raises whatever ends a process's use of its device, so that the caller can examine the cases in fresh ones.
    """
    own: dict[int, Own] = {}
    for group in groups(cases, adapter, options):
        if len(group) > 1:
            watch = Stopwatch(device, announce, exact=exact_stages)
            found = own_evidence([cases[i] for i in group], adapter, watch)
            own |= {index: each for index, each in zip(group, found, strict=True) if each is not None}
    records = []
    for index, case in enumerate(cases):
        mine = own.get(index)
        evidence = None if mine is None else mine.evidence
        record = examine(case, adapter, options, device, announce=announce, exact_stages=exact_stages, own=evidence)
        if mine is not None:
            for stage, seconds in (*mine.seconds.items(), ("total", sum(mine.seconds.values()))):
                record.seconds[stage] = round(record.seconds.get(stage, 0.0) + seconds, 6)
        records.append(record)
    return records


def own_evidence(cases: Sequence[AttentionCase], adapter: Adapter, watch: Stopwatch) -> list[Own | None]:
    """What `gather_evidence` says of the own data of each case, or None where it must be asked."""
    whole, device = merged(cases), watch.device
    outputs: list[AttentionOutput] = []
    try:
        if hasattr(adapter, "prepare"):
            with watch.stage("prepare"), adapter_at_work("prepare"):
                for case in cases:
                    adapter.prepare(case)
        with watch.stage("draw"):
            data, each = merged_data(cases, device)
        with watch.stage("golden"):  # before the kernels, which may overwrite their inputs
            golden = golden_attention(whole, data, moments=True)
        for case, own_data in zip(cases, each, strict=True):
            level = case.poison.weaker(adapter.poison)
            outputs.append(Examiner(case, adapter, device, watch).run(own_data, level)[1])
    except AdapterFailure:
        synchronize(device)  # raises if the device is lost to this process
        return [None] * len(cases)
    if not all(_is_regular(case, output) for case, output in zip(cases, outputs, strict=True)):
        return [None] * len(cases)
    with watch.stage("judge"):
        evidence = _judge(cases, whole, adapter, data, golden, outputs)
    seconds = {name: value / len(cases) for name, value in watch.seconds.items()}
    return [None if one is None else Own(one, seconds) for one in evidence]


def _is_regular(case: AttentionCase, output: AttentionOutput) -> bool:
    shape = (case.total_q, case.num_qo_heads, case.head_dim_vo)
    return check_shape("out", output.out, shape) is None and (
        output.lse is None or check_shape("lse", output.lse, shape[:2]) is None
    )


def _judge(
    cases: Sequence[AttentionCase],
    whole: AttentionCase,
    adapter: Adapter,
    data: LogicalData,
    golden: GoldenOutput,
    outputs: Sequence[AttentionOutput],
) -> list[list[Evidence] | None]:
    out = torch.cat([output.out for output in outputs])
    lses = [output.lse for output in outputs if output.lse is not None]
    if lses and len(lses) < len(outputs):
        return [None] * len(cases)
    maps = [
        largest_error(out, golden.out),
        largest_ratio(out, golden.out, row_bounds(whole, data, golden, kernel_traits(adapter))),
    ]
    if lses:
        tolerance = lse_tolerance(golden.lse, lse_bounds(whole, data, golden, row_sum_traits(adapter)))
        error = lse_error(torch.cat(lses), golden.lse, adapter.lse_base, adapter.empty_row)[2]
        maps += [error, error - tolerance]
    figures = torch.stack(maps).cpu()
    rows = torch.split(figures, [case.total_q for case in cases], 1)
    return [_evidence(case, *part) for case, part in zip(cases, rows, strict=True)]


def _evidence(
    case: AttentionCase, error: Tensor, ratio: Tensor, lse: Tensor | None = None, excess: Tensor | None = None
) -> list[Evidence] | None:
    """Evidence from maps over rows and heads on the host, in the form of `gather_evidence`; None if any fails."""
    largest, worst_ratio = float(error.max()), float(ratio.max())
    if not (math.isfinite(largest) and worst_ratio <= 1):
        return None
    flat = under_atol(_place(case, error), largest, default_atol(case.dtype))
    bound = Evidence("bound", True, {"ratio": worst_ratio, "worst": _place(case, ratio), "rows_over": 0})
    if lse is None or excess is None:
        return [dataclasses.replace(flat, decides=False), bound, Evidence("lse", None, message=NO_LSE)]
    if not float(excess.max()) <= 0:
        return None
    measure = {"max_lse_diff": finite(float(lse.max())), "worst": _place(case, excess)}
    return [dataclasses.replace(flat, decides=False), bound, Evidence("lse", True, measure)]


def _place(case: AttentionCase, by_head: Tensor) -> dict[str, Any]:
    return row_place(case, *divmod(int(by_head.argmax()), case.num_qo_heads))
