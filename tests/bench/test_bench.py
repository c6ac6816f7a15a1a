"""The bench measures what it says, on cases that are the same everywhere. No figure is an absolute time."""

from __future__ import annotations

import dataclasses
import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor
from typer.testing import CliRunner

from cases.batch import AttentionBatch
from cases.recipes import LogicalData, make_data
from cases.schema import AttentionCase
from harness.adapters.protocol import AttentionOutput
from harness.adapters.registry import load_adapter
from harness.bench import measure as measuring
from harness.bench.alone import KernelAndGolden
from harness.bench.growth import AXES, growth, growth_case
from harness.bench.measure import Measurement, Series, measure, stage_seconds
from harness.bench.mixes import MIXES, Mix, chosen_mixes
from harness.bench.rendering import key, print_measurements, read_baseline
from harness.bench.straight import eager_reference, straight_batch, straight_check
from harness.cli.main import app, main, register
from harness.errors import KernelFailed, UsageError
from harness.running.options import RunOptions
from references.golden import GoldenOutput, golden_attention

ADAPTER = "flashinfer-swa-merge@emulated"
CPU = torch.device("cpu")
SMALL = Mix("short", "small enough for a test", 3, 48, 8, window_left=15)


@pytest.fixture(autouse=True)
def small_mix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MIXES, "short", SMALL)


@pytest.mark.parametrize("mix", [mix for mix in MIXES.values() if mix.name != "short"], ids=lambda mix: mix.name)
def test_mixes_hold_what_they_say(mix: Mix) -> None:
    for case in mix.cases(20):
        assert case.num_requests == mix.requests
        assert case.max_kv_len <= mix.longest
        assert case.max_extend_len <= mix.new_rows
    assert len({case.id for case in mix.cases(20)}) == 20


def test_serving_is_skewed_and_long_is_long() -> None:
    lengths = sorted(r.kv_len for case in MIXES["serving"].cases(20) for r in case.requests)
    assert lengths[len(lengths) // 2] < 1024 < 6144 < lengths[-1]
    assert {tuple(r) for r in MIXES["long"].case(3).requests} == {(131072, 64)}


def test_a_mix_is_the_same_everywhere() -> None:
    assert MIXES["serving"].case(7).id == "e9d31eddcbf0"


def test_an_unknown_mix_is_refused() -> None:
    with pytest.raises(UsageError, match="there is no mix 'huge'; use short"):
        chosen_mixes(["huge"])


@pytest.mark.parametrize("causal", [True, False])
def test_the_straight_reference_is_right(causal: bool) -> None:
    case = SMALL.case(1).replace(causal=causal)
    data = make_data(case, "cpu")
    exact = golden_attention(case, data).out
    assert float((eager_reference(case, data, torch.float64) - exact).abs().max()) < 1e-12
    assert 0 < float((eager_reference(case, data, torch.float32) - exact).abs().max()) < 1e-5


def test_the_straight_loop_runs_the_adapter_on_its_own_batch() -> None:
    adapter = load_adapter(ADAPTER)
    case = SMALL.case(2)
    assert 0 < straight_check(case, adapter, CPU, torch.float64) < 0.02
    batch = straight_batch(case, CPU)
    batch.data.q.zero_()  # so that the answers part if the reference and the adapter do not share inputs
    out = adapter.run(adapter.plan(batch), batch).out
    assert float((out.double() - eager_reference(case, batch.data, torch.float64)).abs().max()) < 0.02


def test_of_wall_is_what_the_harness_loses_of_the_rate_of_kernel_and_golden_alone() -> None:
    measured = Measurement("m", "a", "bound", "cpu", 1, Series((2.0, 1.0, 4.0)), 0.0, {"build": 9.0, "golden": 0.2})
    assert measured.to_json()["wall_share"] is None
    measured = dataclasses.replace(measured, alone=Series((2.5, 2.5, 1.0)))
    assert measured.to_json()["wall_share"] == pytest.approx(0.2)
    assert dataclasses.replace(measured, rate=Series((5.0,))).wall_share == 0.0
    assert measured.to_json()["shared_wall_share"] is None
    together = dataclasses.replace(measured, shared=Series((6.0,)), shared_alone=Series((8.0,)), processes=4)
    assert together.to_json()["shared_wall_share"] == pytest.approx(0.25)


def test_kernel_and_golden_alone_are_run_on_inputs_that_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    adapter = load_adapter(ADAPTER)
    cases = [*SMALL.cases(3), SMALL.case(7).replace(sinks=False, page_size=8, num_qo_heads=4)]
    spared = KernelAndGolden(cases, adapter, RunOptions(evidence="bound"), CPU)
    expected = [golden_attention(case, make_data(case, "cpu")).out for case in cases]

    def golden(case: AttentionCase, data: LogicalData, *, moments: bool) -> GoldenOutput:
        found = golden_attention(case, data, moments=moments)
        seen.append(f"golden of {case.num_requests} requests")
        whole.append(found.out)
        return found

    def run(plan: Any, batch: AttentionBatch) -> AttentionOutput:
        outs[batch.case.id] = answer(plan, batch).out.double()
        return AttentionOutput(outs[batch.case.id], None)

    whole: list[Tensor] = []
    outs: dict[str, Tensor] = {}
    answer = adapter.run
    monkeypatch.setattr("harness.bench.alone.golden_attention", golden)
    monkeypatch.setattr(adapter, "run", run)
    assert spared.rate(0.0) > 0
    assert sorted(seen) == ["golden of 3 requests", "golden of 9 requests"], "three cases together, one alone"
    found, exact_rows = (torch.cat([each.flatten() for each in rows]) for rows in (whole, expected))
    torch.testing.assert_close(found, exact_rows, rtol=1e-12, atol=1e-13)  # summed in another order
    for case, exact in zip(cases, expected, strict=True):
        assert float((outs[case.id] - exact).abs().max()) < 0.02, "a kernel on its own inputs"


@pytest.mark.parametrize("member", ["prepare", "plan", "run"])
def test_an_adapter_that_raises_is_told(member: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> Any:
        raise ValueError("boom")

    adapter = load_adapter(ADAPTER)
    monkeypatch.setattr(adapter, member, fails, raising=False)
    with pytest.raises(KernelFailed, match="gave 1 CRASH instead of PASS"):
        measure(SMALL, adapter, CPU, cases=1, runs=1, loops=False)
    spared = KernelAndGolden(SMALL.cases(1), adapter, RunOptions(evidence="bound"), CPU)
    with pytest.raises(UsageError, match=f"timed alone: {member} raised ValueError: boom"):
        spared.run()


def test_a_case_is_prepared_right_before_its_kernel_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, str]] = []
    adapter = load_adapter(ADAPTER)
    plan = adapter.plan
    monkeypatch.setattr(adapter, "prepare", lambda case: seen.append(("prepare", case.id)), raising=False)
    monkeypatch.setattr(adapter, "plan", lambda batch: (seen.append(("plan", batch.case.id)), plan(batch))[1])
    cases = SMALL.cases(2)
    KernelAndGolden(cases, adapter, RunOptions(evidence="bound"), CPU).run()
    assert seen == [(what, case.id) for case in cases for what in ("prepare", "plan")]


def test_a_folder_as_output_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    register("bench")
    ran = CliRunner().invoke(app, ["bench", "--output", str(tmp_path)])
    assert isinstance(ran.exception, UsageError)
    assert str(ran.exception) == f"cannot write {tmp_path}: it is a folder; name a file."
    assert "measuring" not in ran.output


def test_stages_add_up() -> None:
    measured = measure(SMALL, load_adapter(ADAPTER), CPU, cases=3, runs=2, seconds=30)
    assert len(measured.rate.rates) == 2
    assert measured.verdicts == {"PASS": 6}
    assert sum(measured.shares.values()) == pytest.approx(1)
    assert all(measured.seconds[name] > 0 for name in measuring.STAGES if name != "other")
    assert 0 < measured.harness_share < 1
    body = json.loads(json.dumps(measured.to_json()))
    for name, ratio in body["ratio_to_loops"].items():
        assert ratio == pytest.approx(body["cases_per_second"]["median"] / body["loops"][name]["median"])


def test_a_slow_stage_shows_in_its_own_share(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import time

    from harness.record import RecordWriter
    from harness.running import together
    from harness.running.options import RunOptions

    def slow(*arguments: Any, **options: Any) -> Any:
        time.sleep(0.4)
        return golden_attention(*arguments, **options)

    monkeypatch.setattr(together, "golden_attention", slow)
    writer = RecordWriter(tmp_path / "records.jsonl")
    stages = stage_seconds(SMALL.cases(2, 900), load_adapter(ADAPTER), CPU, RunOptions(evidence="bound"), writer)
    assert stages["golden"] >= 0.2
    assert max(stages, key=lambda name: stages[name]) == "golden"


def test_what_an_adapter_before_left_does_not_help(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = Mix("short", "one case a group", 1, 48, 8)
    computed = []

    def counted(case: Any, *arguments: Any, **options: Any) -> Any:
        computed.append(case.id)
        return golden_attention(case, *arguments, **options)

    monkeypatch.setattr("harness.judging.kept.golden_attention", counted)
    monkeypatch.setitem(MIXES, "short", alone)
    counts = []
    for name in (ADAPTER, "flash-attn-3@emulated"):
        computed.clear()
        measure(alone, load_adapter(name), CPU, cases=1, runs=2, loops=False)
        counts.append(len(computed))
    assert counts[0] == counts[1] > 2


def test_wrong_answers_are_no_speed() -> None:
    class Wrong:
        def __init__(self) -> None:
            self.inner = load_adapter(ADAPTER)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

        def run(self, plan: Any, batch: Any) -> Any:
            output = self.inner.run(plan, batch)
            output.out.mul_(2)
            return output

    with pytest.raises(KernelFailed, match="3 WRONG instead of PASS, so its speed says nothing"):
        measure(SMALL, Wrong(), CPU, cases=3, runs=1, loops=False)


def test_a_wrong_kernel_is_a_finding(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    kernel = f"{Path(__file__).parents[1] / 'fuzzing' / 'wrong_kernels.py'}:WindowOneTooLong"
    monkeypatch.setattr(sys, "argv", ["attn-harness", "bench", "--adapter", kernel, "--cases", "1", "--runs", "1"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 1
    assert "WRONG instead of PASS" in capfd.readouterr().err


def test_median_and_spread() -> None:
    series = Series((4.0, 5.0, 10.0))
    assert series.median == 5.0
    assert series.spread == pytest.approx(6 / 5)
    with pytest.raises(UsageError, match="nothing was measured"):
        Series(())


def test_growth_varies_one_axis_at_a_time() -> None:
    for axis, values in AXES.items():
        cases = [growth_case(axis, value, 0) for value in values]
        sizes = {
            "tokens": [case.total_kv for case in cases],
            "requests": [case.num_requests for case in cases],
            "heads": [case.num_qo_heads for case in cases],
        }
        assert sizes.pop(axis) == list(values)
        assert all(len(set(others)) == 1 for others in sizes.values()), axis
    first = next(growth(load_adapter(ADAPTER), CPU, repeats=1, seconds=0.001))
    assert (first["axis"], first["value"]) == ("tokens", 1024)
    assert first["milliseconds"]["golden"] > 0


def invoke(*arguments: str) -> Any:
    register("bench")
    return CliRunner().invoke(app, ["bench", *arguments])


def test_the_command_writes_what_it_can_compare_with(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    small = ("--cases", "2", "--runs", "1", "--no-loops")
    first = invoke(*small, "--output", str(path))
    assert first.exit_code == 0, first.output
    assert "cases/s" in first.output
    body = json.loads(path.read_text(encoding="utf-8"))
    (row,) = body["measurements"]
    assert read_baseline(path) == {key(row): row["cases_per_second"]["median"]}
    again = invoke(*small, "--baseline", str(path))
    assert again.exit_code == 0, again.output
    assert "x baseline" in again.output
    for output in (first.output, again.output):
        assert "peak" not in output, "a CPU has no peak to tell"
        assert "together" not in output, "one process was measured"  # no column and no word in the legend
        assert "harness share: of the stages' sum" in output
    body["measurements"][0]["mix"] = "another"
    path.write_text(json.dumps(body), encoding="utf-8")
    assert "no row of the baseline is of the same mix" in invoke(*small, "--baseline", str(path)).output


def test_columns_that_hold_something_are_shown() -> None:
    body = measure(SMALL, load_adapter(ADAPTER), CPU, cases=1, runs=1, loops=False).to_json()
    rows = [body, body | {"peak_bytes": 3 << 20}]
    console = Console(width=200, record=True, file=io.StringIO())
    print_measurements(console, rows, {})
    said = console.export_text()
    assert "peak" in said
    assert "3 MiB" in said


def test_bad_baselines_are_refused_in_one_sentence(tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text("[1, 2]", encoding="utf-8")
    with pytest.raises(UsageError, match="holds no bench"):
        read_baseline(other)
    with pytest.raises(UsageError, match="cannot read the baseline"):
        read_baseline(tmp_path / "missing.json")
