"""Several cases at a time through one adapter: drawn together, run one by one, compared together.

Each case keeps its own batch, plan and kernel call; only what the harness does around them is shared. What comes out
is the evidence of the case's own data, from the one run of its kernel, or what the adapter raised; verdicts are made of
it in harness/running/examine.py as of any other. Evidence that fails is worked out by the functions that judge a case
alone, from the same output: a second run could be right where the first was not.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from cases.recipes import LogicalData
from cases.schema import AttentionCase
from cases.together import merged, merged_data, numbers
from harness.adapters.protocol import Adapter, AttentionOutput
from harness.judging.compare import NO_LSE, check_shape, finite, largest_error, largest_ratio, lse_error, under_atol
from harness.judging.gather import judge_own
from harness.judging.tolerances import default_atol, lse_tolerance
from harness.judging.traits import kernel_traits, row_sum_traits
from harness.judging.where import row_place
from harness.record import Record
from harness.running.examine import AdapterFailure, Examiner, Stopwatch, adapter_at_work, examine, synchronize
from harness.running.options import RunOptions
from harness.verdict import Evidence
from references.error_bounds import lse_bounds, row_bounds
from references.golden import GoldenOutput, golden_attention
from references.moments import RowMoments

Figures = NDArray[np.float64]
_reuse_outputs: set[str] = set()  # names of adapters seen to write every output to the same memory
MOST_CASES = 32
# Numbers of a group (see `_numbers_of`): beyond it launching is not what takes the time. Golden and judging hold about
# five times as many in fp64.
MOST_NUMBERS = {"cpu": 1 << 25, "cuda": 1 << 27}
MEMORY_SHARE = 1 << 10  # on a GPU at most one number for so many bytes that it has


@dataclass(frozen=True, slots=True)
class Own:
    """Evidence of one case's own data, or why there is none, and its share of the group's seconds by stage."""

    found: list[Evidence] | AdapterFailure
    seconds: dict[str, float]

    def __call__(self) -> list[Evidence]:
        if isinstance(self.found, AdapterFailure):
            raise self.found
        return self.found


def most_numbers(device: torch.device) -> int:
    """Of a group on `device`."""
    if device.type != "cuda":
        return MOST_NUMBERS["cpu"]
    return min(MOST_NUMBERS["cuda"], torch.cuda.get_device_properties(device).total_memory // MEMORY_SHARE)


def _numbers_of(case: AttentionCase) -> int:
    """Keys, values and outputs; an output counts four times, for what golden and the bounds hold of each."""
    keys = case.total_kv * case.num_kv_heads * (case.head_dim_qk + case.head_dim_vo)
    return keys + 4 * case.total_q * case.num_qo_heads * case.head_dim_vo


def can_share(case: AttentionCase, adapter: Adapter, options: RunOptions, device: torch.device) -> bool:
    """True if nothing of the case needs to be alone: no sinks (they are a case's own), no graph (its replay
    rewrites the output of the case before), no tolerance or fault of the user's."""
    return (
        options.evidence != "atol"
        and options.atol is None
        and options.fault is None
        and adapter.name not in _reuse_outputs
        and not case.sinks
        and not case.execution.uses_graph
        and _numbers_of(case) <= most_numbers(device) // 2
        and adapter.capabilities.unsupported(case) is None
    )


def groups(
    cases: Sequence[AttentionCase], adapter: Adapter, options: RunOptions, device: torch.device
) -> Iterator[list[int]]:
    """Indices of `cases` that can be merged, each index in at most one group of two or more."""
    kinds: dict[tuple[object, ...], list[int]] = {}
    for index, case in enumerate(cases):
        if can_share(case, adapter, options, device):
            # Compared in one pass, so the level of poison, which decides nothing there, may differ.
            kinds.setdefault(numbers(case), []).append(index)
    for members in kinds.values():
        total = sum(_numbers_of(cases[i]) for i in members)
        # Of like size: one that is left over alone has all the steps to itself.
        fair = total / max(1, math.ceil(total / most_numbers(device)), math.ceil(len(members) / MOST_CASES))
        group: list[int] = []
        held = 0.0
        for index in members:
            size = _numbers_of(cases[index])
            if group and (held + size / 2 > fair or held + size > most_numbers(device) or len(group) == MOST_CASES):
                yield group
                group, held = [], 0.0
            group.append(index)
            held += size
        yield group


def examine_together(
    cases: Sequence[AttentionCase],
    adapter: Adapter,
    options: RunOptions,
    device: torch.device,
    *,
    announce: Callable[[str], None] = lambda _stage: None,
    exact_stages: bool = False,
    on_record: Callable[[int, Record], None] = lambda _index, _record: None,
) -> list[Record]:
    """The records that `examine` gives for each of `cases`, in their order; each is told to `on_record`, with its
    index, as soon as it is made.

    Raises whatever ends a process's use of its device, so that the caller can examine the cases in fresh ones.
    """
    own: dict[int, Own] = {}
    for group in groups(cases, adapter, options, device):
        if len(group) > 1:
            watch = Stopwatch(device, announce, exact=exact_stages)
            found = own_evidence([cases[i] for i in group], adapter, options, watch)
            own |= zip(group, found, strict=True) if found is not None else ()
    records = []
    for index, case in enumerate(cases):
        mine = own.get(index)
        record = examine(case, adapter, options, device, announce=announce, exact_stages=exact_stages, own=mine)
        if mine is not None:
            for stage, seconds in (*mine.seconds.items(), ("total", sum(mine.seconds.values()))):
                record.seconds[stage] = round(record.seconds.get(stage, 0.0) + seconds, 6)
        records.append(record)
        on_record(index, record)
    return records


def own_evidence(
    cases: Sequence[AttentionCase], adapter: Adapter, options: RunOptions, watch: Stopwatch
) -> list[Own] | None:
    """What `gather_evidence` finds on the own data of each case; None if the adapter hands out one buffer again and
    again, so that the outputs of a group cannot be held."""
    whole, device = merged(cases), watch.device
    with watch.stage("draw"):
        data, each = merged_data(cases, device)
    with watch.stage("golden"):  # before the kernels, which may overwrite their inputs
        golden = golden_attention(whole, data, moments=True)
    examiners = [Examiner(case, adapter, device, watch) for case in cases]
    # All before the first kernel, which is waited for: a GPU works on golden meanwhile.
    batches = [
        examiner.build(own_data, examiner.case.poison.weaker(adapter.poison))
        for examiner, own_data in zip(examiners, each, strict=True)
    ]
    outputs: list[AttentionOutput | AdapterFailure] = []
    held: list[tuple[int, int]] = []
    for case, examiner, batch in zip(cases, examiners, batches, strict=True):
        try:
            if hasattr(adapter, "prepare"):
                with watch.stage("prepare"), adapter_at_work("prepare"):
                    adapter.prepare(case)
            output = examiner.answer(batch)
            memory = _memory_of(output)
            if any(start < end_held and start_held < end for start, end in memory for start_held, end_held in held):
                _reuse_outputs.add(adapter.name)
                return None
            held += memory
            outputs.append(output)
        except AdapterFailure as failure:
            synchronize(device)  # raises if the device is lost to this process
            outputs.append(failure)
    with watch.stage("judge"):
        found = _judged(cases, whole, adapter, options, data, golden, outputs)
    seconds = {name: value / len(cases) for name, value in watch.seconds.items()}
    return [Own(one, seconds) for one in found]


def _memory_of(output: AttentionOutput) -> list[tuple[int, int]]:
    """Addresses [start, end) of an output's storages: those of one buffer may begin at different places of it."""
    storages = [tensor.untyped_storage() for tensor in (output.out, output.lse) if tensor is not None]
    return [(storage.data_ptr(), storage.data_ptr() + storage.nbytes()) for storage in storages]


def _judged(
    cases: Sequence[AttentionCase],
    whole: AttentionCase,
    adapter: Adapter,
    options: RunOptions,
    data: LogicalData,
    golden: GoldenOutput,
    outputs: Sequence[AttentionOutput | AdapterFailure],
) -> list[list[Evidence] | AdapterFailure]:
    """Evidence, or the failure, of each case: from maps of all rows at once where it holds."""
    regular = [_is_regular(case, output) for case, output in zip(cases, outputs, strict=True)]
    maps = None
    if all(regular):
        maps = _maps(whole, adapter, data, golden, [o for o in outputs if isinstance(o, AttentionOutput)])
    found: list[list[Evidence] | AdapterFailure] = []
    start = keys = 0
    for case, output in zip(cases, outputs, strict=True):
        rows, tokens = slice(start, start + case.total_q), slice(keys, keys + case.total_kv)
        start, keys = rows.stop, tokens.stop
        if isinstance(output, AdapterFailure):
            found.append(output)
            continue
        evidence = None if maps is None else _holding(case, *maps[:, rows])
        if evidence is None:
            of_case = GoldenOutput(golden.out[rows], golden.lse[rows], _moments_of(golden, rows))
            own_data = LogicalData(data.q[rows], data.k[tokens], data.v[tokens], None)
            atol = default_atol(case.dtype)
            evidence = judge_own(
                case, adapter, own_data, of_case, of_case.lse, output, options.evidence, atol, atol_decides=False
            )
        found.append(evidence)
    return found


def _moments_of(golden: GoldenOutput, rows: slice) -> RowMoments | None:
    return None if golden.moments is None else golden.moments.slice(rows)


def _is_regular(case: AttentionCase, output: AttentionOutput | AdapterFailure) -> bool:
    """It is an output of the shapes that it should have."""
    shape = (case.total_q, case.num_qo_heads, case.head_dim_vo)
    return (
        isinstance(output, AttentionOutput)
        and check_shape("out", output.out, shape) is None
        and (output.lse is None or check_shape("lse", output.lse, shape[:2]) is None)
    )


def _maps(
    whole: AttentionCase,
    adapter: Adapter,
    data: LogicalData,
    golden: GoldenOutput,
    outputs: Sequence[AttentionOutput],
) -> Figures | None:
    """fp64 on the host [2 or 4, total_q, num_qo_heads]: error, error over bound, and where there is an LSE its error
    and that less its tolerance. None if only some outputs have one."""
    out = torch.cat([output.out for output in outputs])
    lses = [output.lse for output in outputs if output.lse is not None]
    if lses and len(lses) < len(outputs):
        return None
    bounds = row_bounds(whole, data, golden, kernel_traits(adapter))
    maps = [largest_error(out, golden.out), largest_ratio(out, golden.out, bounds)]
    if lses:
        tolerance = lse_tolerance(golden.lse, lse_bounds(whole, data, golden, row_sum_traits(adapter)))
        error = lse_error(torch.cat(lses), golden.lse, adapter.lse_base, adapter.empty_row)[2]
        maps += [error, error - tolerance]
    figures: Figures = torch.stack(maps).cpu().numpy()  # a case's few numbers are then read in a fifth of the time
    return figures


def _holding(
    case: AttentionCase, error: Figures, ratio: Figures, lse: Figures | None = None, excess: Figures | None = None
) -> list[Evidence] | None:
    """Evidence from maps of its rows, in the form of `judge_own`; None if any fails."""
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


def _place(case: AttentionCase, by_head: Figures) -> dict[str, Any]:
    return row_place(case, *divmod(int(by_head.argmax()), case.num_qo_heads))
