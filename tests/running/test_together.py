"""Cases examined together get the records that they get alone."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from cases import AttentionCase, Request
from cases.batch import AttentionBatch
from cases.recipes import each_case, make_data
from cases.schema import Execution
from cases.together import merged, merged_data
from harness.adapters.protocol import AttentionOutput, LseBase
from harness.adapters.registry import load_adapter
from harness.bench.mixes import Mix
from harness.record import Record
from harness.running import together
from harness.running.examine import Stopwatch, examine
from harness.running.options import RunOptions
from harness.running.together import Group, can_share, examine_together, groups
from harness.verdict import Verdict
from references.golden import golden_attention

CPU = torch.device("cpu")
BOUND = RunOptions(evidence="bound")
MIX = Mix("short", "small", 3, 60, 9, window_left=15)
OTHER = AttentionCase(requests=(Request(20, 3),), num_qo_heads=4, num_kv_heads=4, dtype="float16", kv_dtype="float16")
CASES = [
    *MIX.cases(3),
    OTHER,
    OTHER.replace(seed=5, recipe="spiky"),
    AttentionCase(requests=(Request(9, 4), Request(0, 3)), sinks=True),
    OTHER.replace(seed=6, requests=(Request(0, 9), Request(31, 1))),
    AttentionCase(requests=(Request(9, 4), Request(5, 2)), logits_soft_cap=3.0),
    *MIX.cases(2, 50),
]
HALF = together.most_numbers(CPU) // 2 // (2 * 2 * 64)  # keys of the mix's heads that fill half a group
ADAPTERS = ["flashinfer-swa-merge@emulated", "flash-attn-3@emulated", "flashinfer-paged-fa2@emulated", "torch-sdpa"]


def told(record: Record) -> dict[str, Any]:
    """A record without its times; what the order of fp32 sums moves is rounded away."""
    body = record.to_json()
    body.pop("seconds")

    def rounded(value: Any) -> Any:
        if isinstance(value, float):
            return float(f"{value:.5g}")
        if isinstance(value, dict):
            return {name: rounded(inner) for name, inner in value.items()}
        return [rounded(inner) for inner in value] if isinstance(value, (list, tuple)) else value

    told: dict[str, Any] = rounded(body)
    return told


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("evidence", ["bound", "default"])
@pytest.mark.parametrize("name", ADAPTERS)
def test_records_are_the_same(name: str, evidence: str, ahead: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(together, "_LOOK_AHEAD", {"cpu"} if ahead else set())
    adapter, options = load_adapter(name), RunOptions(evidence=evidence)
    alone = [examine(case, adapter, options, CPU) for case in CASES]
    shared = examine_together(CASES, adapter, options, CPU)
    assert [told(record) for record in shared] == [told(record) for record in alone]
    assert any(len(group) > 1 for group in groups(CASES, adapter, options, CPU))
    assert all(
        {"draw", "golden", "run", "judge", "total"} <= set(r.seconds) for r in shared if r.verdict is Verdict.PASS
    )


def test_the_device_has_golden_of_the_next_group_before_records_of_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    def noted(*arguments: Any, **options: Any) -> Any:
        done.append("golden")
        return golden_attention(*arguments, **options)

    monkeypatch.setattr(together, "golden_attention", noted)
    monkeypatch.setattr(together, "MOST_CASES", 2)
    for devices, order in (
        (set(), "golden record record golden record record"),
        ({"cpu"}, "golden golden " + "record " * 4),
    ):
        monkeypatch.setattr(together, "_LOOK_AHEAD", devices)
        done.clear()
        tell = lambda index, record: done.append("record")  # noqa: E731
        examine_together(MIX.cases(4, 150), load_adapter(ADAPTERS[0]), BOUND, CPU, on_record=tell)
        assert done == order.split()


def test_golden_of_a_group_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def counted(*arguments: Any, **options: Any) -> Any:
        calls.append(arguments[0].num_requests)
        return golden_attention(*arguments, **options)

    monkeypatch.setattr(together, "golden_attention", counted)
    records = examine_together(MIX.cases(6, 100), load_adapter(ADAPTERS[0]), BOUND, CPU)
    assert calls == [18]
    assert {record.verdict for record in records} == {Verdict.PASS}


class WrongOn:
    """Doubles the output of one case; `how` is what it does instead."""

    def __init__(self, seed: int, how: str) -> None:
        self.inner, self.seed, self.how = load_adapter(ADAPTERS[1]), seed, how

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def run(self, plan: Any, batch: AttentionBatch) -> AttentionOutput:
        output = self.inner.run(plan, batch)
        if batch.case.seed != self.seed:
            return output
        if self.how == "raises":
            raise RuntimeError("no kernel for this")
        if self.how == "shape":
            return AttentionOutput(output.out[:-1], output.lse)
        if self.how == "inputs":
            batch.data.v.mul_(2)
            batch.v_pool.mul_(2)
            return self.inner.run(plan, batch)
        changed = {"nan": torch.nan, "inf": torch.inf, "double": 2.0}.get(self.how)
        if changed is None:
            return AttentionOutput(output.out, output.lse + 0.5)
        return AttentionOutput(output.out * changed, output.lse)


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("how", ["double", "nan", "inf", "lse", "shape", "raises", "inputs"])
def test_one_wrong_case_in_a_group_is_told_as_alone_and_spares_the_rest(
    how: str, ahead: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(together, "_LOOK_AHEAD", {"cpu"} if ahead else set())
    monkeypatch.setattr(together, "MOST_CASES", 2)  # two groups
    cases = MIX.cases(4, 200)
    adapter = WrongOn(202, how)
    alone = [examine(case, adapter, BOUND, CPU) for case in cases]
    assert [record.verdict is Verdict.PASS for record in alone] == [True, True, False, True]
    assert [told(record) for record in examine_together(cases, adapter, BOUND, CPU)] == [told(r) for r in alone]


@pytest.mark.parametrize("how", ["double", "raises"])
def test_a_kernel_that_is_wrong_only_once_is_not_let_off(how: str) -> None:
    class Once(WrongOn):
        """Right in every later run of the case."""

        def run(self, plan: Any, batch: AttentionBatch) -> AttentionOutput:
            try:
                return super().run(plan, batch)
            finally:
                if batch.case.seed == self.seed:
                    self.seed = -1

    records = examine_together(MIX.cases(4, 200), Once(202, how), BOUND, CPU)
    assert [record.verdict is Verdict.PASS for record in records] == [True, True, False, True]


@pytest.mark.parametrize("wrapped_anew", [False, True])
def test_an_adapter_may_hand_out_one_buffer_for_every_case(wrapped_anew: bool) -> None:
    held: dict[str, torch.Tensor] = {}
    memory, turns = bytearray(1 << 22), itertools.count()

    class Static:
        """Returns one buffer for every case, as a captured graph does, or a piece of it, each time a storage of its
        own that begins elsewhere."""

        name = f"static-{wrapped_anew}"

        def __init__(self) -> None:
            self.inner = load_adapter(ADAPTERS[1])

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

        def run(self, plan: Any, batch: AttentionBatch) -> AttentionOutput:
            out = self.inner.run(plan, batch).out
            if wrapped_anew:
                piece = torch.frombuffer(memory, dtype=out.dtype, count=out.numel(), offset=64 * (next(turns) % 7))
                return AttentionOutput(piece.view(out.shape).copy_(out))
            buffer = held.setdefault("out", torch.zeros((4096, *out.shape[1:]), dtype=out.dtype))
            buffer[: out.shape[0]] = out
            return AttentionOutput(buffer[: out.shape[0]])

    records = examine_together(MIX.cases(4, 300), Static(), BOUND, CPU)
    assert {record.verdict for record in records} == {Verdict.PASS}


class Changed:
    """A right adapter but for what `change` makes of its output; `wraps` a rule or a member of it as well."""

    def __init__(self, change: Callable[[AttentionOutput, AttentionBatch], AttentionOutput], **members: Any) -> None:
        self.inner, self.change, self.ran = load_adapter(ADAPTERS[1]), change, []
        for name, value in members.items():
            setattr(self, name, value)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def run(self, plan: Any, batch: AttentionBatch) -> AttentionOutput:
        self.ran.append(batch.case.seed)
        return self.change(self.inner.run(plan, batch), batch)


def verdicts(adapter: Any, cases: Sequence[AttentionCase]) -> tuple[list[str], list[str]]:
    """Of the cases alone, and together."""
    alone = [examine(case, adapter, BOUND, CPU) for case in cases]
    return [str(r.verdict) for r in alone], [str(r.verdict) for r in examine_together(cases, adapter, BOUND, CPU)]


class Labelled(torch.Tensor):
    """A subclass of an adapter's own."""


@pytest.mark.parametrize(
    "change",
    [
        lambda o: AttentionOutput(o.out.requires_grad_(), o.lse.requires_grad_()),
        lambda o: AttentionOutput(torch.nn.Parameter(o.out), o.lse),
        lambda o: AttentionOutput(o.out.as_subclass(Labelled), o.lse),
        lambda o: AttentionOutput(o.out, o.lse.double()),
    ],
)
def test_what_kind_of_tensor_an_output_is_does_not_matter(change: Any) -> None:
    adapter = Changed(lambda output, batch: change(output) if batch.case.seed % 2 else output)
    assert verdicts(adapter, MIX.cases(4, 400)) == (["PASS"] * 4, ["PASS"] * 4)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        (lambda o: AttentionOutput(o.out.new_tensor(1.0), o.lse), "CRASH"),
        (lambda o: AttentionOutput(o.out, o.lse.new_tensor(1.0)), "CRASH"),
        (lambda o: AttentionOutput(o.out, o.lse.to(torch.float8_e5m2)), "WRONG"),
        (lambda o: AttentionOutput(torch.nested.nested_tensor([o.out[0], o.out[1]]), o.lse), "CRASH"),
    ],
)
def test_an_odd_output_is_told_of_its_case_alone(change: Any, verdict: str) -> None:
    adapter = Changed(lambda output, batch: change(output) if batch.case.seed == 402 else output)
    expected = ["PASS", "PASS", verdict, "PASS"]
    assert verdicts(adapter, MIX.cases(4, 400)) == (expected, expected)


def test_a_rule_that_learns_from_a_failure_does_not_hide_it() -> None:
    def change(output: AttentionOutput, batch: AttentionBatch) -> AttentionOutput:
        if batch.case.seed != 402:
            return output
        adapter.capabilities = dataclasses.replace(
            adapter.inner.capabilities, rules=(lambda _case: "known not to work",)
        )
        raise RuntimeError("no kernel for this")

    adapter = Changed(change)
    records = examine_together(MIX.cases(4, 400), adapter, BOUND, CPU)
    assert [str(r.verdict) for r in records] == ["PASS", "PASS", "CRASH", "PASS"]


def test_a_case_spoilt_by_its_neighbour_is_no_matter_of_unused_slots() -> None:
    def change(output: AttentionOutput, batch: AttentionBatch) -> AttentionOutput:
        if batch.case.seed == 401 and not adapter.ran.count(402):  # a row past its q, which is the next case's first
            q = batch.q
            torch.as_strided(q, (64,), (1,), q.storage_offset() + q.numel()).fill_(7.0)
        return output

    adapter = Changed(change)
    records = examine_together(MIX.cases(4, 400), adapter, BOUND, CPU)
    assert [str(r.verdict) for r in records] == ["PASS", "PASS", "WRONG", "PASS"]
    assert records[2].reason.startswith("right alone, but in a run beside other cases: ")


def test_each_case_is_judged_by_what_is_declared_after_it() -> None:
    def change(output: AttentionOutput, batch: AttentionBatch) -> AttentionOutput:
        natural = batch.case.seed != 401
        adapter.lse_base = LseBase.NATURAL if natural else LseBase.LOG2
        return output if natural else AttentionOutput(output.out, output.lse / math.log(2))

    adapter = Changed(change, name="of-two-bases")
    assert verdicts(adapter, MIX.cases(4, 400)) == (["PASS"] * 4, ["PASS"] * 4)
    assert not can_share(MIX.case(400), adapter, BOUND, CPU)


def test_a_rule_that_raises_is_told_where_its_case_is_examined() -> None:
    def rule(case: AttentionCase) -> str | None:
        raise KeyError(case.seed)

    adapter = Changed(lambda output, _batch: output)
    adapter.capabilities = dataclasses.replace(adapter.inner.capabilities, rules=(rule,))
    assert verdicts(adapter, MIX.cases(2, 400)) == (["CRASH"] * 2, ["CRASH"] * 2)


def test_memory_that_the_next_group_lacks_costs_no_verdict_of_this_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls, told = [], []

    def scarce(*arguments: Any, **options: Any) -> Any:
        calls.append(arguments[0].num_requests)
        if len(calls) == 2:
            raise torch.cuda.OutOfMemoryError("for want of memory")
        return golden_attention(*arguments, **options)

    monkeypatch.setattr(together, "golden_attention", scarce)
    monkeypatch.setattr(together, "MOST_CASES", 2)
    monkeypatch.setattr(together, "_LOOK_AHEAD", {"cpu"})
    tell = lambda index, record: told.append((index, len(calls)))  # noqa: E731
    records = examine_together(MIX.cases(4, 500), load_adapter(ADAPTERS[0]), BOUND, CPU, on_record=tell)
    assert {record.verdict for record in records} == {Verdict.PASS}
    assert told == [(0, 2), (1, 2), (2, 3), (3, 3)]


def test_what_is_examined_alone() -> None:
    adapter = load_adapter(ADAPTERS[1])
    case = MIX.case(1)
    assert can_share(case, adapter, BOUND, CPU)
    captured = Execution(capture_requests=case.requests)
    assert not can_share(case.replace(execution=captured), adapter, BOUND, CPU)
    assert not can_share(case.replace(sinks=True), adapter, BOUND, CPU)
    assert not can_share(case.replace(requests=((HALF + 1, 1),)), adapter, BOUND, CPU)
    assert not can_share(case.replace(pool_pages=HALF // case.page_size + 1), adapter, BOUND, CPU)
    assert not can_share(case, adapter, RunOptions(evidence="bound", atol=1e-2), CPU)
    assert not can_share(case, adapter, RunOptions(evidence="bound", fault="x"), CPU)


def test_groups_are_bounded_and_alike() -> None:
    cases = [*MIX.cases(together.MOST_CASES * 2 + 3), OTHER]
    made = list(groups(cases, load_adapter(ADAPTERS[1]), BOUND, CPU))
    assert sorted(index for group in made for index in group) == list(range(len(cases)))
    sizes = [len(group) for group in made if group != [len(cases) - 1]]
    assert len(sizes) == 3 == len(made) - 1, "as many as are needed, and what is unlike the others"
    assert max(sizes) <= together.MOST_CASES
    assert min(sizes) > together.MOST_CASES // 2, "of like size"
    large = [case.replace(requests=((HALF - 100, 1),)) for case in MIX.cases(5)]
    assert [len(group) for group in groups(large, load_adapter(ADAPTERS[1]), BOUND, CPU)] == [2, 2, 1]


@pytest.mark.parametrize("recipe", ["normal", "spiky"])
def test_merged_data_and_answers_are_those_of_the_cases(recipe: str) -> None:
    cases = [case.replace(recipe=recipe) for case in MIX.cases(3)]
    whole = merged_data(cases, "cpu")
    each = each_case(cases, whole)
    golden = golden_attention(merged(cases), whole, moments=True)
    start = 0
    for case, data in zip(cases, each, strict=True):
        alone = make_data(case, "cpu")
        assert torch.equal(data.q, alone.q)
        assert torch.equal(data.k, alone.k)
        assert torch.equal(data.v, alone.v)
        expected = golden_attention(case, alone)
        rows = slice(start, start + case.total_q)
        assert float((golden.out[rows] - expected.out).abs().max()) < 1e-12
        assert float((golden.lse[rows] - expected.lse).abs().max()) < 1e-12
        start += case.total_q


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="not run: needs a CUDA GPU")
def test_a_gpu_is_given_a_group_without_being_waited_for() -> None:
    adapter, device, cases = load_adapter("torch-varlen"), torch.device("cuda", 0), MIX.cases(4, 300)
    cases = [case.replace(window_left=None) for case in cases]
    warm = examine_together(cases, adapter, BOUND, device)  # compiles, and compares the kernels once
    assert {record.verdict for record in warm} == {Verdict.PASS}
    watch = Stopwatch(device, lambda _stage: None)
    torch.cuda.set_sync_debug_mode("error")  # raises where something waits
    try:
        group = Group(cases, adapter, BOUND, watch)
        group.begin()
        batches = group.build()
        torch.cuda.set_sync_debug_mode("default")
        assert group.run(batches)
        torch.cuda.set_sync_debug_mode("error")
        group.compare()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert all(evidence.passed for own in group.evidence() for evidence in own() if evidence.decides)
