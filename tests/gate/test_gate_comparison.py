"""What fails the gate, and what does not: each rule on records made for it."""

from collections.abc import Iterable

import pytest
from synthetic import a_case, a_finding, a_record

from harness.gate.baseline import baseline_from_records
from harness.gate.comparison import ChangeKind, Comparison, GateResult, compare
from harness.record import Record
from harness.verdict import Verdict


def gate(now: Iterable[Record], before: Iterable[Record], **more: object) -> GateResult:
    baseline = baseline_from_records(before)
    return compare(Comparison(list(now), baseline, frozenset(baseline), **more))  # type: ignore[arg-type]


def kinds(result: GateResult) -> list[ChangeKind]:
    return [change.kind for change in result.changes]


def test_the_same_records_pass() -> None:
    records = [a_record(n) for n in range(5)]
    result = gate(records, records)
    assert result.passed
    assert result.verdicts == {"PASS": 5}
    assert result.notes == ()


@pytest.mark.parametrize(
    "verdict", [Verdict.WRONG, Verdict.POISONED, Verdict.CRASH, Verdict.TIMEOUT, Verdict.OUT_OF_MEMORY]
)
def test_a_new_non_pass_fails(verdict: Verdict) -> None:
    result = gate([a_record(0, verdict, reason="because")], [a_record(0)])
    assert kinds(result) == [ChangeKind.NEW_FAILURE]
    assert "the baseline has PASS" in result.changes[0].sentence


def test_a_failure_of_a_case_the_baseline_does_not_know_fails() -> None:
    result = gate([a_record(0), a_finding(1)], [a_record(0)])
    assert kinds(result) == [ChangeKind.NEW_FAILURE]
    assert "not in the baseline" in result.changes[0].sentence


def test_a_failure_that_the_baseline_has_too_is_said_and_does_not_fail() -> None:
    result = gate([a_finding(0)], [a_finding(0)])
    assert result.passed
    assert [r.case.id for r in result.standing] == [a_case(0).id]


def test_another_failure_than_the_baselines_fails() -> None:
    assert kinds(gate([a_record(0, Verdict.CRASH)], [a_finding(0)])) == [ChangeKind.NEW_FAILURE]


def test_a_fixed_case_passes_and_is_said() -> None:
    result = gate([a_record(0)], [a_finding(0)])
    assert result.passed
    assert len(result.fixed) == 1


def test_a_case_that_is_gone_is_lost_coverage() -> None:
    result = gate([a_record(0)], [a_record(0), a_record(1)])
    assert kinds(result) == [ChangeKind.LOST]
    assert result.changes[0].case_id == a_case(1).id
    assert "no longer run" in result.changes[0].sentence


@pytest.mark.parametrize("verdict", [Verdict.UNSUPPORTED, Verdict.ERROR])
def test_a_case_that_no_longer_runs_is_lost_whatever_the_reason(verdict: Verdict) -> None:
    result = gate([a_record(0, verdict, reason="no sliding window")], [a_record(0)])
    assert kinds(result) == [ChangeKind.LOST]
    assert "no sliding window" in result.changes[0].sentence


def test_a_failing_case_cannot_be_made_to_pass_by_declaring_it_unsupported() -> None:
    assert kinds(gate([a_record(0, Verdict.UNSUPPORTED)], [a_finding(0)])) == [ChangeKind.LOST]


def test_unsupported_before_and_now_is_no_loss() -> None:
    unsupported = a_record(0, Verdict.UNSUPPORTED, reason="no sinks")
    assert gate([unsupported], [unsupported]).passed
    assert gate([], [unsupported]).passed


def test_an_error_of_the_harness_on_a_new_case_fails() -> None:
    assert kinds(gate([a_record(0, Verdict.ERROR)], [])) == [ChangeKind.LOST]


def test_planned_cases_without_a_record_are_lost_even_if_the_baseline_lacks_them() -> None:
    key = (a_case(7).id, "flash-attn-4")
    result = gate([a_record(0)], [a_record(0)], missing={key: "a-name"})
    assert kinds(result) == [ChangeKind.LOST]
    assert result.changes[0].key == key


# -- errors that grew --------------------------------------------------------------------------
def test_an_error_within_the_baselines_own_spread_passes_and_one_beyond_fails() -> None:
    before = [a_record(0, error=0.010), a_record(0, error=0.006)]  # spread 0.004, limit 0.010 + 2 * 0.004
    assert gate([a_record(0, error=0.0175)], before).passed
    result = gate([a_record(0, error=0.0185)], before)
    assert kinds(result) == [ChangeKind.GREW]
    assert "max-abs-diff grew from 0.01" in result.changes[0].sentence


def test_the_factor_is_the_callers() -> None:
    before = [a_record(0, error=0.010), a_record(0, error=0.006)]
    assert gate([a_record(0, error=0.0185)], before, factor=3.0).passed


def test_without_a_spread_an_error_may_grow_by_half() -> None:
    assert gate([a_record(0, error=0.0149)], [a_record(0, error=0.010)]).passed
    assert kinds(gate([a_record(0, error=0.0151)], [a_record(0, error=0.010)])) == [ChangeKind.GREW]


def test_growth_below_one_rounding_of_the_output_is_none() -> None:
    assert gate([a_record(0, error=2.0**-8)], [a_record(0, error=1e-5)]).passed
    fp16 = a_case(0, dtype="float16", kv_dtype="float16")
    assert kinds(gate([a_record(fp16, error=2.0**-8)], [a_record(fp16, error=1e-5)])) == [ChangeKind.GREW]


def test_the_worst_of_several_records_is_judged() -> None:
    assert kinds(gate([a_record(0), a_record(0, error=0.019)], [a_record(0)])) == [ChangeKind.GREW]
    assert kinds(gate([a_record(0), a_finding(0)], [a_record(0)])) == [ChangeKind.NEW_FAILURE]


def test_error_over_bound_and_residuals_may_not_grow_either() -> None:
    result = gate([a_record(0, ratio=0.9, residual=0.4)], [a_record(0, ratio=0.4, residual=0.03)])
    assert kinds(result) == [ChangeKind.GREW, ChangeKind.GREW]
    said = " ".join(change.sentence for change in result.changes)
    assert "error over bound" in said
    assert "residual of certificate flat" in said


# -- evidence that changed ---------------------------------------------------------------------
def test_a_certificate_that_is_no_longer_taken_fails() -> None:
    result = gate([a_record(0, residual=None)], [a_record(0)])
    assert kinds(result) == [ChangeKind.EVIDENCE]
    assert "flat held, and is no longer taken" in result.changes[0].sentence


@pytest.mark.parametrize(("now", "word"), [(None, "no longer applies"), (False, "now does not")])
def test_a_certificate_that_no_longer_holds_fails(now: bool | None, word: str) -> None:
    result = gate([a_record(0, certificate=now)], [a_record(0)])
    assert kinds(result) == [ChangeKind.EVIDENCE]
    assert word in result.changes[0].sentence


def test_a_bound_that_is_no_longer_taken_fails() -> None:
    assert kinds(gate([a_record(0, ratio=None)], [a_record(0)])) == [ChangeKind.EVIDENCE]


def test_evidence_that_is_new_passes() -> None:
    assert gate([a_record(0)], [a_record(0, residual=None, ratio=None)]).passed


def test_other_versions_and_devices_are_said() -> None:
    now = a_record(0, device="NVIDIA H100", versions={"torch": "2.11.0+cu130", "flashinfer-python": "0.7.1"})
    notes = " / ".join(gate([now], [a_record(0)]).notes)
    assert "flashinfer-python: 0.6.18 in the baseline, 0.7.1 here" in notes
    assert "NVIDIA H200 in the baseline, NVIDIA H100 here" in notes
    assert "torch" not in notes


def test_what_differs_is_said_also_of_a_suite_that_the_baseline_has_nothing_of() -> None:
    baseline = baseline_from_records([a_record(0), a_record(0, adapter="torch-sdpa", device="cpu")])
    now = a_record(7, device="NVIDIA B200", versions={"torch": "2.12.0"})
    for record in (now, now.replace(case=a_case(0))):
        notes = compare(Comparison([record], baseline, frozenset())).notes
        assert "device: NVIDIA H200 in the baseline, NVIDIA B200 here" in notes
        assert "torch: 2.11.0+cu130 in the baseline, 2.12.0 here" in notes
    elsewhere = compare(Comparison([now.replace(adapter="mine")], baseline, frozenset())).notes
    assert "device: NVIDIA H200, cpu in the baseline, NVIDIA B200 here" in elsewhere
