"""Shards of a suite: each case exactly once, and merged they are the run that was not split."""

import json
from pathlib import Path
from typing import Any

import pytest
from synthetic import a_case
from test_gate_runs import ADAPTER, write_cases

from harness.record import Record, read_records
from harness.record_files import load_records
from harness.report.merge import merge_records

TIMES = ("seconds", "time")


def untimed(record: Record) -> str:
    body: dict[str, Any] = record.to_json()
    return json.dumps({name: value for name, value in body.items() if name not in TIMES}, sort_keys=True)


@pytest.mark.usefixtures("without_workers")
def test_three_shards_cover_each_case_once_and_merge_to_the_whole(tmp_path: Path, run_gate) -> None:
    cases = write_cases(tmp_path / "cases", tuple(a_case(n) for n in range(7)))
    choice = ("-b", "b", "--cases", cases, "-a", ADAPTER)
    whole, parts = tmp_path / "whole", [tmp_path / f"part{n}" for n in (1, 2, 3)]
    assert run_gate(*choice, "--reports", whole, "--update").code == 0
    baseline = whole / "baselines" / "b.jsonl"
    for number, part in enumerate(parts, 1):
        answer = run_gate("-b", baseline, *choice[2:], "--reports", part, "--shard", f"{number}/3")
        assert answer.code == 0, answer  # what other shards run is not lost
    files = [next(part.glob("gate-*.jsonl")) for part in parts]
    ids = [record.case.id for file in files for record in read_records(file)]
    assert sorted(ids) == sorted(a_case(n).id for n in range(7))

    merge_records(load_records(files), tmp_path / "all.jsonl")
    (unsharded,) = whole.glob("gate-*.jsonl")
    assert sorted(map(untimed, read_records(tmp_path / "all.jsonl"))) == sorted(map(untimed, read_records(unsharded)))
    assert run_gate("-b", baseline, "--reports", tmp_path, "--records", tmp_path / "all.jsonl").code == 0

    # A shard whose records never arrived is lost coverage for the merged gate, though no run was killed.
    merge_records(load_records(files[:2]), tmp_path / "two.jsonl")
    lost = run_gate("-b", baseline, "--reports", tmp_path, "--records", tmp_path / "two.jsonl")
    assert lost.code == 1
    missing = len(list(read_records(files[2])))
    assert f"LOST COVERAGE ({missing})" in lost.out
    # And a single shard's records are judged as that shard when one says so.
    alone = run_gate("-b", baseline, *choice[2:], "--reports", tmp_path, "--records", files[0], "--shard", "1/3")
    assert alone.code == 0, alone


@pytest.mark.usefixtures("without_workers")
def test_under_a_time_limit_what_is_left_out_is_said_and_not_lost(tmp_path: Path, run_gate) -> None:
    cases = write_cases(tmp_path / "cases", tuple(a_case(n) for n in range(7)))
    choice = ("-b", "b", "--cases", cases, "-a", ADAPTER, "--reports", tmp_path)
    assert run_gate(*choice, "--update").code == 0
    baseline = tmp_path / "baselines" / "b.jsonl"
    lines = [json.loads(line) for line in baseline.read_text().splitlines()]
    for entry in lines[1:]:
        entry["seconds"] = 10.0
    baseline.write_text("".join(json.dumps(line) + "\n" for line in lines))
    answer = run_gate(*choice, "--minutes", "0.5", "--json")
    assert answer.code == 0, answer
    body = json.loads(answer.out)
    assert sum(body["verdicts"].values()) == 3
    assert body["left_out"] == 4
    # Read again from its records: the plan beside them says what was left out.
    again = json.loads(run_gate("-b", "b", "--reports", tmp_path, "--records", body["records"][0], "--json").out)
    assert (again["exit_code"], again["left_out"]) == (0, 4)
