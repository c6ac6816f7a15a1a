"""Records: exact round trip, appended whole, and read back after a kill."""

import json
from pathlib import Path
from typing import Any

import pytest

from cases import AttentionCase, Execution, Request
from harness.errors import UsageError
from harness.record import EVIDENCE_KINDS, FIELDS, KINDS, Record, RecordWriter, read_records
from harness.record_files import read_plan, replace_text
from harness.verdict import EVIDENCE_FIELDS, Evidence, Stability, Verdict

RECORD = Record(
    AttentionCase(requests=(Request(3, 2),), execution=Execution(capture_requests=(Request(9, 2),))),
    "some-kernel",
    Verdict.WRONG,
    reason="off",
    max_abs_diff=0.25,
    evidence=(Evidence("atol", False, {"max_abs_diff": 0.25}, "off"),),
    stability=Stability.FLAKY,
    explanation=("one", "two"),
    versions={"torch": "2.11.0"},
)


def test_round_trip_is_exact(tmp_path: Path) -> None:
    writer = RecordWriter(tmp_path / "deep" / "r.jsonl")
    writer.write(RECORD)
    writer.write(RECORD.replace(adapter="other"))
    writer.close()
    assert list(read_records(tmp_path / "deep" / "r.jsonl")) == [RECORD, RECORD.replace(adapter="other")]


def test_a_line_cut_short_by_a_kill_is_dropped(tmp_path: Path) -> None:
    line = json.dumps(RECORD.to_json())
    path = tmp_path / "r.jsonl"
    path.write_text(line + "\n" + line[:80])
    assert list(read_records(path)) == [RECORD]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{nonsense}\n", "line 1 is no JSON"),
        ("[]\n", "no JSON object"),
        ('{"record_version": 99}\n', "record_version 99"),
        ('{"record_version": 1}\n', "no field"),
    ],
)
def test_bad_records_are_one_sentence(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text(text)
    with pytest.raises(UsageError, match=says):
        list(read_records(path))


def test_nan_never_reaches_a_record(tmp_path: Path) -> None:
    writer = RecordWriter(tmp_path / "r.jsonl")
    with pytest.raises(ValueError, match="not JSON compliant"):
        writer.write(RECORD.replace(max_abs_diff=float("nan")))


def put(body: dict[str, Any], place: str, value: object) -> None:
    *path, last = [int(part) if part.isdigit() else part for part in place.split(".")]
    inside: Any = body
    for part in path:
        inside = inside[part]
    inside[last] = value


@pytest.mark.parametrize(
    ("place", "value", "says"),
    [
        ("adapter", ["x"], "adapter is a list; it must be text"),
        ("reason", None, "reason is None; it must be text"),
        ("suite", 5, "suite is 5; it must be text or null"),
        ("fault", {}, "fault is an object; it must be text or null"),
        ("max_abs_diff", "x", "max_abs_diff is 'x'; it must be a number or null"),
        ("max_abs_diff", True, "max_abs_diff is True"),
        ("max_abs_diff", 10**400, "max_abs_diff is past what a number holds"),
        ("max_abs_diff", float("nan"), "max_abs_diff is NaN"),
        ("atol", [], "atol is a list"),
        ("poison", 1, "poison is 1"),
        ("evidence", None, "evidence is None; it must be a list"),
        ("evidence.0", 5, "evidence\\[\\] is 5; it must be an object"),
        ("evidence.0.kind", 5, "evidence\\[\\].kind is 5"),
        ("evidence.0.passed", 1, "evidence\\[\\].passed is 1; it must be true or false or null"),
        ("evidence.0.measure", 5, "evidence\\[\\].measure is 5; it must be an object"),
        ("evidence.0.message", None, "evidence\\[\\].message is None"),
        ("evidence.0.decides", "no", "evidence\\[\\].decides is 'no'"),
        ("explanation", "one", "explanation is 'one'; it must be a list"),
        ("explanation.1", 2, "explanation\\[\\] is 2; it must be text"),
        ("versions", None, "versions is None; it must be an object"),
        ("versions.torch", 2, "versions\\['torch'\\] is 2; it must be text"),
        ("seconds", 5, "seconds is 5; it must be an object"),
        ("seconds.run", "x", "seconds\\['run'\\] is 'x'; it must be a number"),
        ("seconds.run", float("inf"), "seconds\\['run'\\] is past what a number holds"),
        ("device", None, "device is None"),
        ("time", 5, "time is 5"),
        ("verdict", ["PASS"], "is not a valid Verdict"),
        ("stability", 7, "is not a valid Stability"),
        ("case", [], "a case is a JSON object"),
    ],
)
def test_a_field_of_another_type_is_refused_with_its_place(
    tmp_path: Path, place: str, value: object, says: str
) -> None:
    body = RECORD.replace(seconds={"run": 0.5}).to_json()
    good = json.dumps(body)
    body = json.loads(good)
    put(body, place, value)
    path = tmp_path / "r.jsonl"
    path.write_text(good + "\n" + json.dumps(body) + "\n")
    with pytest.raises(UsageError, match=f"r.jsonl line 2 cannot be read: .*{says}"):
        list(read_records(path))


def test_every_field_of_a_record_is_checked() -> None:
    made = {"case", "verdict", "stability"}  # by what they become
    assert set(KINDS) | made == set(FIELDS)
    assert set(EVIDENCE_KINDS) == set(EVIDENCE_FIELDS)


@pytest.mark.parametrize("shard", ['"ab"', "[1]", '["a", 2]', "5"])
def test_an_odd_plan_is_refused(tmp_path: Path, shard: str) -> None:
    plan = tmp_path / "r.plan.json"
    plan.write_text(f'{{"plan_version": 1, "planned": [], "left_out": [], "shard": {shard}}}')
    with pytest.raises(UsageError, match="is no plan of a run"):
        read_plan(tmp_path / "r.jsonl")


def test_text_that_is_no_unicode_can_be_written(tmp_path: Path) -> None:
    replace_text(tmp_path / "report.md", "raised \udc80")
    assert (tmp_path / "report.md").read_text() == "raised \\udc80"
