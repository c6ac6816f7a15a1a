"""Records: exact round trip, appended whole, and read back after a kill."""

import json
from pathlib import Path

import pytest

from cases import AttentionCase, Execution, Request
from harness.errors import UsageError
from harness.record import Record, RecordWriter, read_records
from harness.verdict import Evidence, Stability, Verdict

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
