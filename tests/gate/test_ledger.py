"""The ledger: its rules where an entry is built, and what it does to the gate."""

import datetime
from pathlib import Path
from typing import Any

import pytest
from synthetic import a_case, a_finding, a_record

from harness.errors import UsageError
from harness.gate.baseline import baseline_from_records
from harness.gate.comparison import ChangeKind, Comparison, compare
from harness.gate.ledger import Ledger, parse_entry, read_ledger
from harness.verdict import Verdict

ENTRY: dict[str, Any] = {
    "adapter": "flashinfer-*",
    "versions": {"flashinfer-python": ">=0.6.18,<0.7"},
    "case": {"window_left": ">=1"},
    "verdict": ["WRONG"],
    "upstream": "flashinfer-ai/flashinfer#4972",
    "reason": "the window is ignored by both legs",
    "date": datetime.date(2026, 9, 14),
}
ROOT = Path(__file__).parent


def entry(**changes: Any) -> Any:
    body = {name: value for name, value in (ENTRY | changes).items() if value is not ...}
    return parse_entry(body, 1, "ledger entry 1", ROOT)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"upstream": ...}, "has no reference"),
        ({"upstream": "see the chat"}, "owner/repository#number"),
        ({"upstream": ..., "finding": "findings/never-written.md"}, "does not exist"),
        ({"versions": {}}, "in which versions"),
        ({"versions": {"flashinfer-python": "new ones"}}, "no range"),
        ({"versions": {"flashinfer-python": ""}}, "no range"),
        ({"case": {}}, "at least one condition"),
        ({"case": {"window": 3}}, "no field 'window'"),
        ({"adapter": "*"}, "says more than *"),
        ({"verdict": "PASS"}, "use one or more of WRONG"),
        ({"verdict": ["ERROR"]}, "use one or more of WRONG"),
        ({"verdict": []}, "use one or more of WRONG"),
        ({"reason": "broken"}, "in a sentence"),
        ({"date": "yesterday"}, "without quotes"),
        ({"date": datetime.date(2999, 1, 1)}, "still to come"),
        ({"date": ...}, "has no date"),
        ({"adapter": ...}, "has no adapter"),
        ({"always": "sometimes"}, "true or false"),
        ({"severity": "low"}, "severity"),
    ],
)
def test_an_entry_that_breaks_a_rule_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as refusal:
        entry(**changes)
    sentence = str(refusal.value)
    assert said in sentence
    assert sentence.startswith("ledger entry 1")


def test_a_good_entry_is_taken_with_an_issue_an_address_or_a_finding() -> None:
    assert entry().reference == "flashinfer-ai/flashinfer#4972"
    assert entry(upstream="https://example.org/issues/3").reference == "https://example.org/issues/3"
    assert entry(upstream=..., finding="test_ledger.py").reference == "test_ledger.py"


def applies(**changes: Any) -> bool:
    record = a_finding(0)
    return bool(entry(**changes).applies(record.case, record.adapter, record.versions))


def test_an_entry_applies_to_its_adapter_versions_and_cases_only() -> None:
    assert applies()
    assert not applies(adapter="flash-attn-*")
    assert not applies(versions={"flashinfer-python": ">=0.7"})
    assert not applies(versions={"sglang": ">=0.1"})
    assert applies(versions={"torch": "==2.11.0"})  # the record has 2.11.0+cu130
    assert not applies(case={"window_left": "none"})


def judged(now: list[Any], before: list[Any], *entries: Any) -> Any:
    baseline = baseline_from_records(before)
    return compare(Comparison(now, baseline, frozenset(baseline), ledger=Ledger(tuple(entries))))


def test_a_known_failure_does_not_fail_the_gate() -> None:
    result = judged([a_finding(0)], [a_record(0)], entry())
    assert result.passed
    assert len(result.known) == 1


def test_a_known_wrong_that_became_a_crash_fails() -> None:
    result = judged([a_record(0, Verdict.CRASH)], [a_record(0)], entry())
    assert [c.kind for c in result.changes] == [ChangeKind.NEW_FAILURE]
    assert "the ledger knows it as WRONG" in result.changes[0].sentence


def test_a_crash_record_without_versions_is_matched_by_the_runs_versions() -> None:
    record = a_record(0, Verdict.CRASH, versions={})
    known = Ledger((entry(verdict="CRASH"),))
    baseline = baseline_from_records([a_record(0)])
    inputs = Comparison([record], baseline, frozenset(baseline), ledger=known, versions={"flashinfer-python": "0.6.20"})
    assert compare(inputs).passed


def test_an_entry_that_stops_failing_fails_the_gate() -> None:
    result = judged([a_record(0)], [a_record(0)], entry())
    assert [c.kind for c in result.changes] == [ChangeKind.LEDGER]
    assert "remove it" in result.changes[0].sentence


def test_an_entry_that_covers_more_than_what_fails_is_to_be_narrowed() -> None:
    records = [a_finding(0), a_record(1)]
    result = judged(records, records, entry())
    assert [c.kind for c in result.changes] == [ChangeKind.LEDGER]
    assert "1 of 2 cases pass; narrow it" in result.changes[0].sentence
    assert judged(records, records, entry(case={"id": a_case(0).id})).passed


def test_a_failure_that_comes_and_goes_may_pass_now_and_then_but_not_always() -> None:
    race = entry(always=False)
    assert judged([a_finding(0), a_record(1)], [a_record(0), a_record(1)], race).passed
    assert not judged([a_record(0), a_record(1)], [a_record(0), a_record(1)], race).passed


def test_an_entry_whose_cases_are_not_here_is_no_failure() -> None:
    record = a_record(a_case(0, window_left=None))
    assert judged([record], [record], entry()).passed


def test_an_absent_ledger_is_empty_and_the_committed_one_is_good(tmp_path: Path) -> None:
    assert read_ledger(tmp_path / "none.toml") == Ledger()
    read_ledger(Path(__file__).parents[2] / "reports" / "known_failures.toml")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("format_version = 9", "format_version 9"),
        ("", "format_version None"),
        ("format_version = 1\n[known]\na = 1", "[[known]]"),
        ("format_version = 1\n[[unknown]]\na = 1", "unknown"),
        ("format_version = 1\n[[known]]\ndate = 2026-13-45", "cannot be read"),
        ("not toml at all", "cannot be read"),
    ],
)
def test_a_broken_ledger_is_one_sentence(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "known.toml"
    path.write_text(text)
    with pytest.raises(UsageError) as refusal:
        read_ledger(path)
    assert said in str(refusal.value)
    assert str(path) in str(refusal.value)
