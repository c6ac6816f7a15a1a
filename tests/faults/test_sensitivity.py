"""Sensitivity: what catches what, what nothing can see, and the command that prints it."""

import json

import pytest
import torch
import typer
from typer.testing import CliRunner

from cases.schema import AttentionCase, Mode, Request
from harness.cli.faults import faults
from harness.errors import UsageError
from harness.faults.fuzz_cost import FuzzCost, draw_cases
from harness.faults.parallel import map_faults
from harness.faults.protocol import Fault, FaultClass
from harness.faults.registry import load_fault
from harness.faults.sensitivity import SAMPLE, Sensitivity, _spread, measure, measure_all, rungs
from harness.faults.shots import Range, cost, targets

CASES = (
    AttentionCase(requests=(Request(9, 3), Request(0, 2)), window_left=4, page_size=4),
    AttentionCase(requests=(Request(20, 1), Request(3, 1)), mode=Mode.DECODE),
    AttentionCase(requests=(Request(5, 4),)),
)
FA3, MERGE = "flash-attn-3@emulated", "flashinfer-swa-merge@emulated"


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def shooting():
    return Range()


def command(*arguments):
    app = typer.Typer()
    app.command()(faults)
    return CliRunner().invoke(app, [*arguments, "--processes", "1"])


def test_a_window_fault_is_caught_where_a_window_cuts(shooting):
    result = measure(shooting, load_fault("window-one-too-wide"), CASES, (FA3,))
    assert result.cases == 1
    assert result.caught == result.shots == 1
    assert result.first == (CASES[0].name, CASES[0].id, FA3)
    assert {"atol", "bound", "certificate"} <= set(result.fired)
    assert result.ladder == (1, 1, 1, 1)
    assert result.as_it_should


def test_an_lse_fault_needs_lse(shooting):
    result = measure(shooting, load_fault("lse-in-other-base"), CASES, (FA3,))
    assert result.ladder[0] == 0
    assert result.ladder[1] == result.shots == 3


def test_poison_is_told(shooting):
    fault = load_fault("page-table-tail-dereferenced")
    shot = shooting.shoot(fault.smallest, FA3, fault, tell_poison=True)
    assert "poison" in shot.fired
    window = load_fault("window-ignored")
    assert "poison" not in shooting.shoot(window.smallest, FA3, window, tell_poison=True).fired


def test_a_fault_that_no_case_can_show_says_why(shooting):
    result = measure(shooting, load_fault("sinks-ignored"), CASES, ("flash-attn-4@emulated",))
    assert (result.cases, result.caught, result.blind) == (0, 0, "no sinks")
    assert result.as_it_should
    elsewhere = measure(shooting, load_fault("sinks-ignored"), CASES, (FA3,))
    assert elsewhere.blind == "no adapter here that it makes sense for"
    fp8 = AttentionCase(requests=(Request(5, 4),), kv_dtype="float8_e4m3fn", k_scale=1.5)
    untaken = measure(shooting, load_fault("kv-scales-dropped"), [fp8], (FA3,))
    assert untaken.blind == "no adapter takes the cases that could show it: no float8_e4m3fn kv cache"


def test_a_fault_that_changes_nothing_counts_as_missed(shooting):
    idle = Fault("idle", FaultClass.OTHER, "does nothing", on_plan=lambda plan, batch: plan)
    result = measure(shooting, idle, CASES, (FA3, MERGE))
    assert result.caught == 0
    assert result.shots > len(CASES), "every other case and adapter is tried before it counts as missed"
    assert not result.as_it_should


def test_a_control_that_fires_is_not_as_it_should():
    fired = Sensitivity("control-x", "other", True, cases=3, shots=3, caught=1)
    silent = Sensitivity("control-x", "other", True, cases=3, shots=3, caught=0)
    assert not fired.as_it_should
    assert silent.as_it_should


def test_targets_are_cheapest_first_and_fit(shooting):
    found = targets(shooting, load_fault("merge-ignores-lse"), CASES, (FA3, MERGE))
    assert [names for _, names in found] == [(MERGE,)] * len(found)
    costs = [cost(case) for case, _ in found]
    assert costs == sorted(costs)


@pytest.mark.parametrize("count", [1, SAMPLE, SAMPLE + 1, 95])
def test_spread_keeps_both_ends(count):
    chosen = _spread(count, SAMPLE)
    assert chosen[0] == 0
    assert chosen[-1] == count - 1
    assert len(chosen) == min(count, SAMPLE)


def test_rungs_add_up():
    results = [
        Sensitivity("a", "x", False, 2, 4, 4, ladder=(0, 4, 4, 4)),
        Sensitivity("b", "x", False, 2, 4, 2, ladder=(1, 1, 2, 2)),
        Sensitivity("blind", "x", False, 0, 0, 0, ladder=(0, 0, 0, 0)),
        Sensitivity("control", "x", True, 2, 9, 0, ladder=(0, 0, 0, 0)),
    ]
    assert [(caught, total, share) for _, caught, total, share in rungs(results)] == [
        (1, 2, 1 / 8),
        (2, 2, 5 / 8),
        (2, 2, 6 / 8),
        (2, 2, 6 / 8),
    ]


def test_two_processes_give_what_one_gives():
    specs = ["window-ignored", "append-missing", "lse-in-other-base"]
    alone = measure_all(specs, CASES, (FA3,), processes=1)
    together = measure_all(specs, CASES, (FA3,), processes=2)
    assert [r.fault for r in together] == specs
    assert alone == together


def test_map_faults_tells_each_result_once():
    told = []
    results = map_faults(_length, ["aa", "b", "aa"], (), processes=1, on_result=told.append)
    assert results == [2, 1, 2]
    assert told == results


def _length(range_, spec):
    assert isinstance(range_, Range)
    return len(spec)


# -- fuzzing -------------------------------------------------------------------------------------
def test_drawn_cases_repeat_with_their_seed():
    first, again, other = draw_cases(30, 1), draw_cases(30, 1), draw_cases(30, 2)
    assert first == again
    assert first != other
    assert 20 <= len(first) <= 30


def test_median_counts_seeds_that_never_caught_it_as_infinite():
    assert FuzzCost("x", False, (3, 1, 7)).median == 3
    assert FuzzCost("x", False, (3, None, None)).median is None
    assert FuzzCost("x", False, (3, 5, None)).median == 5


# -- the command ---------------------------------------------------------------------------------
def test_command_prints_the_ladder_and_what_is_unseen():
    result = command("--suite", "quick", "--fault", "window-one-too-wide", "--fault", "sink-scaled")
    assert result.exit_code == 0, result.output
    assert "with no more evidence than" in result.output
    assert "flat atol alone" in result.output
    assert "sink-scaled: no sinks" in result.output


def test_command_json():
    result = command(
        "--suite", "quick", "--fault", "lse-in-other-base", "--fault", "control-larger-host-maxima", "--json"
    )
    assert result.exit_code == 0, result.output
    fault, control = json.loads(result.stdout.splitlines()[-1])
    assert fault["ladder"][0] == 0
    assert fault["caught"] == fault["shots"]
    assert control["is_control"]
    assert control["caught"] == 0


def test_command_fails_for_a_fault_that_is_missed(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from harness.faults.protocol import Fault, FaultClass\n"
        "Idle = Fault('idle', FaultClass.OTHER, 'does nothing', on_plan=lambda plan, batch: plan)\n"
    )
    result = command("--suite", "quick", "--adapter", FA3, "--fault", f"{tmp_path}/mine.py:Idle")
    assert result.exit_code == 1
    assert "MISSED" in result.output


def test_command_fuzz():
    result = command("--fuzz", "25", "--fault", "page-offset-dropped", "--json", "--adapter", FA3)
    assert result.exit_code == 0, result.output
    (found,) = json.loads(result.stdout.splitlines()[-1])
    assert found["fault"] == "page-offset-dropped"
    assert len(found["drawn"]) == 20
    assert found["median"] is not None


@pytest.mark.parametrize("also", [(), ("--json",), ("--blame",)])
def test_nothing_planted_is_no_success(also):
    asked = ("--fault", "window-one-too-wide", "--suite", "quick", "--adapter", "torch-sdpa", *also)
    end = command(*asked).exception
    assert isinstance(end, UsageError)
    assert "nothing was planted" in str(end)
