"""Explanations: the right name, an honest "none", and never more than twelve lines."""

import dataclasses
import json

import pytest
import typer
from black_box import (
    BlackBox,
    EverySeventhKeySkipped,
    Forgetful,
    LastPartialPageSkipped,
    OddScale,
    WindowOneTooWide,
)
from typer.testing import CliRunner

from cases.schema import AttentionCase, Mode, Request
from harness.cli.explain import explain as explain_command
from harness.cli.xray import xray as xray_command
from harness.diagnosis.blame import blame_fault
from harness.diagnosis.explaining import MAX_LINES, confirm, explain
from harness.emulation import flashinfer as emulated_flashinfer
from harness.emulation import kernel as emulated_kernel
from harness.faults.catalogue.building import kernel
from harness.faults.protocol import Fault, FaultClass
from harness.faults.registry import load_fault
from harness.faults.shots import emulated_adapters
from harness.grouping import faults_named
from harness.record import Record
from harness.running.examine import examine
from harness.running.options import RunOptions
from harness.verdict import Evidence, Verdict

FA3, FA4, MERGE = "flash-attn-3@emulated", "flash-attn-4@emulated", "flashinfer-swa-merge@emulated"
WINDOW = AttentionCase(requests=(Request(9, 3), Request(0, 4)), window_left=4, page_size=4)
PLAIN = AttentionCase(requests=(Request(40, 5), Request(20, 9)))


# -- named faults --------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "adapter"),
    [
        ("window-one-too-wide", FA3),
        ("swa-merge-window-missing", MERGE),
        ("draft-extend-prefix-only", FA4),
        ("draft-extend-double-count", FA4),
        ("merge-in-other-base", MERGE),
        ("lse-in-other-base", FA3),
        ("combine-lands-on-request-0", FA3),
        ("graph-keys-past-capture-dropped", FA3),
        ("mask-of-first-request-for-all", MERGE),
        ("sink-added-raw", FA4),
        ("page-table-tail-dereferenced", FA3),
        ("warp-reads-old-rows", FA4),
    ],
)
def test_planted_faults_are_named(shooting, examiner_of, wrong, name, adapter):
    fault = load_fault(name)
    examiner = examiner_of(fault.smallest, adapter, fault)
    said = explain(examiner, wrong(examiner), range_=shooting)
    assert name in (said.fault, *said.equals)
    assert said.residual <= 1
    assert said.lines[0].startswith(f"{said.fault}: ")
    assert len(said.lines) <= MAX_LINES
    assert any(line.startswith("wrong: ") for line in said.lines)


def test_every_explained_line_is_one_line(shooting, examiner_of, wrong):
    examiner = examiner_of(PLAIN, FA3, load_fault("page-stride-halved"))
    said = explain(examiner, wrong(examiner), range_=shooting)
    assert all("\n" not in line and line.strip() == line for line in said.lines)


# One row, one key left of its window: all windows that are too wide see the same there.
TIE = AttentionCase(requests=(Request(5, 1),), window_left=4, page_size=4)


def test_every_fault_that_gives_the_same_is_listed(shooting, examiner_of, wrong):
    examiner = examiner_of(TIE, FA3, load_fault("window-one-too-wide"))
    said = explain(examiner, wrong(examiner), range_=shooting)
    named = {said.fault, *said.equals}
    assert {"window-ignored", "window-one-too-wide", "window-twice-too-wide"} <= named
    (line,) = (line for line in said.lines if line.startswith("the same on this case: "))
    assert line.removeprefix("the same on this case: ").split(", ") == list(said.equals)
    record = dataclasses.replace(wrong(examiner), explanation=said.lines)
    assert faults_named(record) == (said.fault, *said.equals)  # what a run's summary reads of it


def test_faults_that_there_was_no_time_for_are_counted(shooting, examiner_of, wrong):
    examiner = examiner_of(TIE, FA3, load_fault("window-one-too-wide"))
    said = explain(examiner, wrong(examiner), seconds=1e-6, range_=shooting)
    assert said.fault is None
    assert "not tried for want of time" in said.lines[-1]


def test_a_race_is_told_from_a_steady_fault(shooting, examiner_of, wrong):
    fault = load_fault("warp-reads-old-rows")
    examiner = examiner_of(fault.smallest, FA3, fault)
    assert "two runs on the same data differ: a race, or state kept between calls" in (
        explain(examiner, wrong(examiner), range_=shooting).lines
    )
    steady = examiner_of(WINDOW, FA3, load_fault("window-ignored"))
    assert not any("differ: a race" in line for line in explain(steady, wrong(steady), range_=shooting).lines)


def test_a_crash_is_named_by_its_words(shooting, examiner_of):
    fault = load_fault("window-crashes-verify")
    examiner = examiner_of(fault.smallest, FA3, fault)
    said = explain(examiner, Record(fault.smallest, FA3, Verdict.CRASH), range_=shooting)
    assert said.fault == fault.name
    assert "prefix_lens is None" in said.lines[1]


def test_an_unknown_crash_is_no_named_fault(shooting, examiner_of):
    class Breaks(BlackBox):
        def run(self, plan, batch):
            raise RuntimeError("something new")

    examiner = examiner_of(WINDOW, Breaks())
    said = explain(examiner, Record(WINDOW, "black-box", Verdict.CRASH), range_=shooting)
    assert said.fault is None
    assert "something new" in said.lines[0]


# -- several, none, too small --------------------------------------------------------------------
def test_two_faults_of_one_class(shooting, examiner_of, wrong):
    case = AttentionCase(requests=(Request(30, 3), Request(31, 3), Request(32, 3)))
    examiner = examiner_of(case, FA3, load_fault("last-partial-page-missing+queries-padded-keys-not"))
    said = explain(examiner, wrong(examiner), range_=shooting, seconds=120)
    assert set(said.fault.split("+")) == {"last-partial-page-missing", "queries-padded-keys-not"}
    assert said.fault_class == "extent"


def test_two_faults_of_other_classes_are_not_given_one_name(shooting, examiner_of, wrong):
    case = AttentionCase(requests=(Request(30, 3), Request(5, 3)), window_left=9)
    examiner = examiner_of(case, FA3, load_fault("window-one-too-wide+scale-doubled"))
    said = explain(examiner, wrong(examiner), range_=shooting, seconds=8)
    assert said.fault is None
    assert "no named fault explains this: the key 10 before each query" in said.lines[0]


@pytest.mark.parametrize("requests", [((40, 5),), ((12, 6),), ((40, 5), (33, 2))])
def test_no_pair_adds_keys_where_none_too_many_were_seen(shooting, examiner_of, wrong, requests):
    """A length cut to whole pages moves the queries, and with the causal mask off gives the same. It was not off."""
    examiner = examiner_of(AttentionCase(requests=requests), LastPartialPageSkipped())
    said = explain(examiner, wrong(examiner), range_=shooting, seconds=120)
    assert said.fault is None
    assert said.lines[0].startswith("no named fault explains this: keys ")
    assert "page edge" in said.lines[0]
    assert said.lines[0].endswith("(too few keys)")


def test_every_seventh_key_has_no_name(shooting, examiner_of, wrong):
    examiner = examiner_of(PLAIN, EverySeventhKeySkipped())
    said = explain(examiner, wrong(examiner), range_=shooting, seconds=8)
    assert said.fault is None
    assert said.fault_class == "too few keys"
    assert said.lines[0].startswith("no named fault explains this: keys 7, 14, 21 ... (every 7th) are missing")


def test_an_odd_scale_is_fitted(shooting, examiner_of, wrong):
    examiner = examiner_of(PLAIN, OddScale())
    said = explain(examiner, wrong(examiner), range_=shooting, seconds=8)
    assert said.fault is None
    assert said.lines[0] == "no named fault explains this: scores are scaled by 1.3"
    assert "X-ray: every query attends to the right keys" in said.lines


def test_below_the_bound_nothing_is_claimed(shooting, examiner_of, wrong):
    tiny = Fault("tiny", FaultClass.OTHER, "scale off", on_kernel=kernel(scale=lambda request, value: value * 1.00001))
    examiner = examiner_of(PLAIN, FA3, tiny)
    said = explain(examiner, wrong(examiner), range_=shooting, seconds=8)
    assert said.fault is None
    assert said.lines[0].startswith("nothing to explain here: every row is within its bound")
    assert "cannot be told from rounding" in said.lines[1]


def test_what_is_right_when_run_again_is_said_to_be(shooting, examiner_of, wrong):
    examiner = examiner_of(PLAIN, FA3)
    record = wrong(examiner).replace(evidence=(Evidence("bound", False, message="error 3 over bound 0.01"),))
    said = explain(examiner, record, range_=shooting, seconds=8)
    assert said.lines[0].startswith("right when run again to be explained: the failure comes and goes")
    assert said.lines[1] == "what failed: error 3 over bound 0.01"


@pytest.mark.parametrize("verdict", [Verdict.PASS, Verdict.UNSUPPORTED, Verdict.ERROR])
def test_only_findings_are_explained(shooting, examiner_of, verdict):
    examiner = examiner_of(PLAIN, FA3)
    said = explain(examiner, Record(PLAIN, FA3, verdict), range_=shooting)
    assert said.lines == (f"nothing to explain: the verdict is {verdict}.",)


def test_a_case_too_large_is_not_begun(shooting, examiner_of, wrong):
    case = AttentionCase(requests=(Request(60000, 64),), num_qo_heads=32)
    examiner = examiner_of(case, FA3)
    said = explain(examiner, wrong(examiner), range_=shooting)
    assert "shrink it first" in said.lines[0]


def test_a_kernel_that_rounds_its_splits_is_explained_by_an_emulation_that_does_not(
    shooting, examiner_of, wrong, monkeypatch
):
    """FlashInfer fa2 on a GPU leaves 13 keys of difference in a special column of FLAT, and 0.05 in the others."""
    name = "bidirectional-window-chunks-short"
    examiner = examiner_of(load_fault(name).smallest, "flashinfer-paged-fa2@emulated", load_fault(name))
    adapter, combine = examiner.adapter, emulated_kernel._combine

    def rounding(hooks, states, grouped, head_dim_vo, launch):
        rounded = []
        for state in states:
            total = state.total.clamp(min=1e-30)
            rounded.append(dataclasses.replace(state, acc=(state.acc / total).bfloat16().float() * total))
        assert len(states) > 1
        return combine(hooks, rounded, grouped, head_dim_vo, launch)

    class Rounding:
        def __getattr__(self, attribute):
            return getattr(adapter, attribute)

        def run(self, plan, batch):
            with monkeypatch.context() as patch:
                patch.setattr(emulated_flashinfer, "SPLIT_KEYS", 128)
                patch.setattr(emulated_kernel, "_combine", rounding)
                return adapter.run(plan, batch)

    examiner.adapter = Rounding()
    assert explain(examiner, wrong(examiner), range_=shooting).fault == name


# -- black boxes ---------------------------------------------------------------------------------
def test_a_black_box_without_lse_is_explained(shooting, examiner_of, wrong):
    examiner = examiner_of(WINDOW, WindowOneTooWide())
    said = explain(examiner, wrong(examiner), range_=shooting)
    assert said.fault == "window-one-too-wide"
    assert said.residual <= 1


def test_a_black_box_that_forgets(shooting, examiner_of, wrong):
    case = AttentionCase(requests=(Request(9, 3),), window_left=4)
    examiner = examiner_of(case, Forgetful())
    said = explain(examiner, wrong(examiner), range_=shooting, seconds=8)
    assert said.fault is None
    assert any("differ: a race" in line for line in said.lines)


def test_a_right_black_box_has_nothing_to_explain(shooting, examiner_of, wrong):
    examiner = examiner_of(WINDOW, BlackBox())
    assert examine(WINDOW, examiner.adapter, RunOptions(), examiner.device).verdict is Verdict.PASS
    assert "within its bound" in explain(examiner, wrong(examiner), range_=shooting).lines[0]


# -- confirming ----------------------------------------------------------------------------------
def test_confirmed_on_the_original(shooting, examiner_of, wrong):
    fault = load_fault("window-ignored")
    small, large = examiner_of(fault.smallest, FA3, fault), examiner_of(WINDOW, FA3, fault)
    said = explain(small, wrong(small), range_=shooting)
    confirmed = confirm(said, large, range_=shooting)
    assert confirmed.lines[1].startswith(f"confirmed on the original case {WINDOW.name}")
    other = examiner_of(WINDOW, FA3, load_fault("window-ignored+page-offset-dropped"))
    assert confirm(said, other, range_=shooting).lines[1].startswith("NOT the whole story")
    assert confirm(dataclasses.replace(said, fault=None), large, range_=shooting).lines == said.lines


# -- blame ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["window-one-too-narrow", "last-split-dropped", "idle-request-overwrites-next-row"])
def test_blame_counts(shooting, name):
    cases = [AttentionCase(requests=(Request(9, 3), Request(3, 1)), window_left=4), PLAIN]
    told = blame_fault(shooting, name, cases, emulated_adapters())
    assert told
    assert all(b.fault == name and b.right and b.classed for b in told)


# -- commands ------------------------------------------------------------------------------------
@pytest.fixture
def case_file(tmp_path):
    path = tmp_path / "case.json"
    path.write_text(json.dumps(WINDOW.to_json()))
    return str(path)


def command(function, *arguments):
    app = typer.Typer()
    app.command()(function)
    return CliRunner().invoke(app, list(arguments))


def test_explain_command(case_file):
    result = command(explain_command, case_file, "--adapter", FA3, "--fault", "window-one-too-wide")
    assert result.exit_code == 1
    assert "window-one-too-wide: the window holds one key more" in result.output
    assert command(explain_command, case_file, "--adapter", FA3).exit_code == 0


def test_explain_command_says_of_each_equal_fault_what_it_is(tmp_path):
    file = tmp_path / "tie.json"
    file.write_text(json.dumps(TIE.to_json()))
    app = typer.Typer()
    app.command()(explain_command)
    out = CliRunner().invoke(app, [str(file), "--adapter", FA3, "--fault", "window-one-too-wide"]).output
    listed = [line.strip() for line in out.splitlines() if line.startswith("  = ")]
    assert len(listed) >= 2
    assert all(load_fault(line.split(": ")[0].removeprefix("= ")).summary in line for line in listed)


def test_xray_command(case_file):
    result = command(xray_command, case_file, "--adapter", FA3, "--fault", "window-one-too-wide")
    assert result.exit_code == 1
    assert "     9 ....+####|#.." in result.output
    assert command(xray_command, case_file, "--adapter", FA3).exit_code == 0


def test_explain_takes_the_id_of_a_suites_case():
    from cases.suites import load_suite

    case = next(c for c in load_suite("quick") if c.window_left is None and c.mode is Mode.EXTEND)
    result = command(explain_command, case.id, "--adapter", FA3)
    assert case.name in result.output
