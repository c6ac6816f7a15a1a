"""Several cases at a time through one adapter: drawn together, run one by one, compared together.

Each case keeps its own batch, plan and kernel call; only what the harness does around them is shared. What comes out
is the evidence of the case's own data, from the one run of its kernel, or what the adapter raised; verdicts are made of
it in harness/running/examine.py as of any other. Evidence that fails is worked out by the functions that judge a case
alone, from the same output: a second run could be right where the first was not.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from cases.batch import AttentionBatch, build_batches
from cases.recipes import LogicalData, each_case
from cases.schema import AttentionCase
from cases.together import merged, merged_data, numbers
from harness.adapters.protocol import Adapter, AttentionOutput
from harness.judging.gather import judge_own
from harness.judging.maps import Maps
from harness.judging.tolerances import default_atol
from harness.judging.traits import declarations
from harness.record import Record
from harness.running.examine import AdapterFailure, Examiner, Stopwatch, adapter_at_work, examine, synchronize
from harness.running.options import RunOptions
from harness.verdict import Evidence
from references.golden import GoldenOutput, golden_attention, plan_golden

_judged_alone: set[str] = set()  # names of adapters seen to change what they declare between cases
MOST_CASES = 32
# Numbers of a group (see `_numbers_of`): beyond it launching is not what takes the time. Golden and judging hold about
# five times as many in fp64, and half as many again are of the group that comes next.
MOST_NUMBERS = {"cpu": 1 << 25, "cuda": 1 << 27}
_LOOK_AHEAD = {"cuda"}  # devices that compute while the host goes on; elsewhere two groups would only take more memory
MEMORY_SHARE = 1 << 10  # on a GPU at most one number for so many bytes that it has: a dozen processes may share it


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
    """Keys and values, or the slots of a pool that has more, and outputs; an output counts four times, for what golden
    and the bounds hold of each."""
    keys = max(case.total_kv, (case.pool_pages or 0) * case.page_size)
    return (
        keys * case.num_kv_heads * (case.head_dim_qk + case.head_dim_vo)
        + 4 * case.total_q * case.num_qo_heads * case.head_dim_vo
    )


def can_share(case: AttentionCase, adapter: Adapter, options: RunOptions, device: torch.device) -> bool:
    """True if nothing of the case needs to be alone: no sinks and no captured graph (they are a case's
    own), no tolerance or fault of the user's."""
    return (
        options.evidence != "atol"
        and options.atol is None
        and options.fault is None
        and adapter.name not in _judged_alone
        and not case.sinks
        and not case.execution.uses_graph
        and _numbers_of(case) <= most_numbers(device) // 2
        and _takes(adapter, case)
    )


def _takes(adapter: Adapter, case: AttentionCase) -> bool:
    """Asked once more where the case is examined alone, and an adapter that raises is told there."""
    try:
        with adapter_at_work("capabilities"):
            return adapter.capabilities.unsupported(case) is None
    except AdapterFailure:
        return False


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
    index, as soon as it is made: groups first, then the cases that are alone.

    Raises whatever ends a process's use of its device, so that the caller can examine the cases in fresh ones.
    """
    records: dict[int, Record] = {}

    def make(index: int, mine: Own | None) -> None:
        made = examine(cases[index], adapter, options, device, announce=announce, exact_stages=exact_stages, own=mine)
        if mine is not None:
            for stage, seconds in (*mine.seconds.items(), ("total", sum(mine.seconds.values()))):
                made.seconds[stage] = round(made.seconds.get(stage, 0.0) + seconds, 6)
        records[index] = made
        on_record(index, made)

    for group in own_evidence(cases, adapter, options, device, announce, exact_stages):
        for index, mine in group.items():
            make(index, mine)
    for index in range(len(cases)):
        if index not in records:
            make(index, None)
    return [records[index] for index in range(len(cases))]


def own_evidence(
    cases: Sequence[AttentionCase],
    adapter: Adapter,
    options: RunOptions,
    device: torch.device,
    announce: Callable[[str], None],
    exact_stages: bool,
) -> Iterator[dict[int, Own]]:
    """What `gather_evidence` finds on the own data of each case that can share, by its index, group by group.

    A GPU is given golden of the next group before the verdicts of this one are waited for: it computes while the host
    makes records and the next batches, and plans the golden after that. Ends where the adapter is seen to
    change what it declares.
    """

    def planned(members: Sequence[int]) -> Group:
        watch = Stopwatch(device, announce, exact=exact_stages)
        return Group([cases[i] for i in members], adapter, options, watch)

    shared = [members for members in groups(cases, adapter, options, device) if len(members) > 1]
    following: Group | None = None
    for number, members in enumerate(shared, 1):
        group = planned(members) if following is None else following
        group.begin()
        batches = group.build()
        following = planned(shared[number]) if number < len(shared) else None
        if not group.run(batches):
            return
        group.compare()
        if following is not None and device.type in _LOOK_AHEAD:
            with contextlib.suppress(torch.cuda.OutOfMemoryError):  # it begins when this group is gone, then
                following.begin()
        yield dict(zip(members, group.evidence(), strict=True))


class Group:
    """Cases on their way through one adapter together. What the device is given in `begin` and `build` is not waited
    for: while it works, the host plans the next group."""

    def __init__(self, cases: Sequence[AttentionCase], adapter: Adapter, options: RunOptions, watch: Stopwatch) -> None:
        self.cases, self.adapter, self.options, self.watch = cases, adapter, options, watch
        self.whole = merged(cases)
        self.outputs: list[AttentionOutput | AdapterFailure] = []
        self._maps: Maps | None = None
        self._begun: tuple[LogicalData, GoldenOutput] | None = None
        with watch.stage("golden"):
            self._plan = plan_golden(self.whole, watch.device, moments=True)

    def begin(self) -> None:
        """Draw, and give the device golden, which comes before the kernels: they may overwrite their inputs."""
        if self._begun is not None:
            return
        with self.watch.stage("draw"):
            data = merged_data(self.cases, self.watch.device)
        with self.watch.stage("golden"):
            self._begun = data, golden_attention(self.whole, data, moments=True, plan=self._plan)

    @property
    def data(self) -> LogicalData:
        assert self._begun is not None
        return self._begun[0]

    @property
    def golden(self) -> GoldenOutput:
        assert self._begun is not None
        return self._begun[1]

    def build(self) -> list[AttentionBatch]:
        """Of every case, before the first kernel is waited for."""
        levels = [case.poison.weaker(self.adapter.poison) for case in self.cases]
        with self.watch.stage("build"):
            return build_batches(self.cases, self.data, levels)

    def run(self, batches: list[AttentionBatch]) -> bool:
        """Every kernel on its own batch, of which none is left; False if the adapter declares something else after one
        case than after another: then each has to be judged by its own."""
        device = self.watch.device
        examiners = [Examiner(case, self.adapter, device, self.watch) for case in self.cases]
        said: set[tuple[object, ...]] = set()
        for case, examiner in zip(self.cases, examiners, strict=True):
            try:
                if hasattr(self.adapter, "prepare"):
                    with self.watch.stage("prepare"), adapter_at_work("prepare"):
                        self.adapter.prepare(case)
                output = examiner.answer(batches.pop(0), wait=False)
            except AdapterFailure as failure:
                synchronize(device)  # raises if the device is lost to this process
                self.outputs.append(failure)
                continue
            self.outputs.append(output)
            said.add(declarations(self.adapter))
        with self.watch.stage("run"):  # once for all: each wait costs a turn of those who share the device
            synchronize(device)
        if len(said) > 1:
            _judged_alone.add(self.adapter.name)
        return len(said) <= 1

    def compare(self) -> None:
        """Of all rows at once, on the device, which is not waited for."""
        outputs = [each for each in self.outputs if isinstance(each, AttentionOutput)]
        if len(outputs) == len(self.cases):
            with self.watch.stage("judge"):
                self._maps = Maps.of(self.whole, self.adapter, self.data, self.golden, outputs)

    def evidence(self) -> list[Own]:
        """Evidence, or the failure, of each case: from the maps of all rows where it holds."""
        with self.watch.stage("judge"):
            found: list[list[Evidence] | AdapterFailure] = []
            end = 0
            for case, data, output in zip(self.cases, each_case(self.cases, self.data), self.outputs, strict=True):
                rows = slice(end, end + case.total_q)
                end = rows.stop
                found.append(output if isinstance(output, AdapterFailure) else self._judged(case, data, output, rows))
        seconds = {name: value / len(self.cases) for name, value in self.watch.seconds.items()}
        return [Own(one, seconds) for one in found]

    def _judged(self, case: AttentionCase, data: LogicalData, output: AttentionOutput, rows: slice) -> list[Evidence]:
        atol = default_atol(case.dtype)
        holding = None if self._maps is None else self._maps.holding(case, rows, atol, atol_decides=False)
        if holding is not None:
            return holding
        moments = None if self.golden.moments is None else self.golden.moments.slice(rows)
        golden = GoldenOutput(self.golden.out[rows], self.golden.lse[rows], moments)
        return judge_own(case, self.adapter, data, golden, output, self.options.evidence, atol, atol_decides=False)
