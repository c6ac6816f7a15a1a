"""`attn-harness gate` with real runs, on a CPU: a fault switched on, a case removed, a kill, two at once."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from synthetic import a_case

from cases import AttentionCase, Request
from harness.gate.baseline import read_baseline
from harness.record import read_records
from harness.running import runner

ROOT = Path(__file__).parents[2]
ADAPTER = f"{Path(__file__).with_name('switchable.py')}:Switchable"
WINDOWED = AttentionCase(requests=(Request(9, 3),), window_left=4, page_size=4)
CASES = (WINDOWED, WINDOWED.replace(window_left=None), WINDOWED.replace(requests=(Request(0, 5),), window_left=None))

LEDGER = """
format_version = 1
[[known]]
adapter = "*:Switchable"
versions = { torch = ">=2" }
case = { window_left = "set" }
verdict = "WRONG"
upstream = "example/kernel#1"
reason = "the window is one key too long"
date = 2026-09-14
"""
COMMAND = "import typer, sys; from harness.cli.gate import gate; app = typer.Typer(); app.command()(gate); app()"


def write_cases(folder: Path, cases: tuple[AttentionCase, ...]) -> Path:
    folder.mkdir(exist_ok=True)
    for old in folder.glob("*.json"):
        old.unlink()
    for case in cases:
        (folder / f"{case.id}.json").write_text(json.dumps(case.to_json()))
    return folder


def start(*arguments: object, **environment: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", COMMAND, *map(str, arguments)],
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.usefixtures("without_workers")
def test_a_fault_switched_on_a_case_removed_and_the_ledger(
    tmp_path: Path, run_gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases = write_cases(tmp_path / "cases", CASES)
    common = ("-b", "b", "--reports", tmp_path, "--workers", 1)
    made = run_gate(*common, "--cases", cases, "-a", ADAPTER, "--update")
    assert made.code == 0, made
    good = tmp_path / next(path.name for path in tmp_path.glob("gate-*.jsonl"))

    monkeypatch.setenv("SWITCHABLE_FAULT", "1")
    found = run_gate(*common, "--cases", cases, "--json")
    assert found.code == 1, found
    body = json.loads(found.out)
    (change,) = body["changes"]
    assert (change["kind"], change["case_id"], change["verdict"]) == ("new failure", WINDOWED.id, "WRONG")
    assert change["replay"] == f"attn-harness replay {tmp_path}/failures/{WINDOWED.id}.json --adapter {ADAPTER}"
    assert "query position" in change["reason"]
    monkeypatch.delenv("SWITCHABLE_FAULT")

    write_cases(cases, CASES[:2])
    removed = run_gate(*common, "--cases", cases)
    assert removed.code == 1, removed
    assert "LOST COVERAGE (1)" in removed.out
    assert CASES[2].id in removed.out

    (tmp_path / "known_failures.toml").write_text(LEDGER)
    excused = run_gate(*common, "--records", body["records"][0])
    assert excused.code == 0, excused
    mended = run_gate(*common, "--records", good)
    assert mended.code == 1, mended
    assert "no longer fails" in mended.out


@pytest.mark.usefixtures("without_workers")
def test_a_keyword_chooses_cases_and_the_others_are_not_its_business(
    tmp_path: Path, run_gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases = write_cases(tmp_path / "cases", CASES)
    common = ("-b", "b", "--reports", tmp_path, "--workers", 1, "--cases", cases)
    assert run_gate(*common, "-a", ADAPTER, "--update").code == 0
    monkeypatch.setenv("SWITCHABLE_FAULT", "1")  # which only the windowed case shows
    for keyword, code, run in (("L4", 1, 1), (WINDOWED.id[:8], 1, 1), ("0+5", 0, 1), ("extend", 1, 3)):
        answer = run_gate(*common, "-k", keyword, "--json")
        body = json.loads(answer.out)
        assert (answer.code, sum(body["verdicts"].values())) == (code, run), (keyword, body)
        assert {change["kind"] for change in body["changes"]} <= {"new failure"}
    before = read_baseline(tmp_path / "baselines" / "b.jsonl")
    assert run_gate(*common, "-k", "L4", "--update", "--accept-failures").code == 0
    after = read_baseline(tmp_path / "baselines" / "b.jsonl")
    assert after.keys() == before.keys()
    assert {key for key in after if after[key].verdict != before[key].verdict} == {(WINDOWED.id, ADAPTER)}
    assert "no case has" in run_gate(*common, "-k", "nothing-is-called-this").err
    assert "does not go with --records" in run_gate("-b", "b", "--records", tmp_path, "-k", "L4").err


@pytest.mark.usefixtures("without_workers")
def test_a_case_known_to_crash_is_not_launched_unless_asked(tmp_path: Path, run_gate) -> None:
    cases = write_cases(tmp_path / "cases", CASES[:2])
    common = ("-b", "b", "--reports", tmp_path, "--workers", 1, "--cases", cases, "-a", ADAPTER)
    (tmp_path / "known_failures.toml").write_text(LEDGER.replace('"WRONG"', '"CRASH"'))
    answer = run_gate(*common, "--update")
    assert answer.code == 0, answer
    assert f"not launched: {WINDOWED.id}" in answer.out
    assert [entry.case_id for entry in read_baseline(tmp_path / "baselines" / "b.jsonl").values()] == [CASES[1].id]
    launched = run_gate(*common, "--launch-known-crashes")
    assert launched.code == 1  # it does not crash: the entry is stale
    assert "remove it" in launched.out


@pytest.mark.usefixtures("without_workers")
def test_a_run_killed_in_the_middle_leaves_what_it_has(tmp_path: Path, run_gate) -> None:
    cases = write_cases(tmp_path / "cases", tuple(a_case(n) for n in range(6)))
    common = ("-b", "b", "--reports", tmp_path, "--cases", cases, "-a", ADAPTER, "--workers", 1)
    run = start(*common, "--update", SWITCHABLE_SLEEP="0.7")
    records: list[Path] = []
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and run.poll() is None:
        records = list(tmp_path.glob("gate-*.jsonl"))
        if records and records[0].read_text().count("\n") >= 2:
            break
        time.sleep(0.05)
    run.send_signal(signal.SIGKILL)
    run.communicate()
    done = len(list(read_records(records[0])))
    assert 2 <= done < 6
    assert not (tmp_path / "baselines").exists()
    made = run_gate(*common, "--update")
    assert made.code == 0, made
    answer = run_gate("-b", "b", "--reports", tmp_path, "--records", records[0])
    assert answer.code == 1
    assert f"{6 - done} of 6 planned cases have no record" in answer.out


def lose_the_adapter(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = runner.run_jobs

    def run_jobs(jobs, options, on_record, **more) -> None:
        whole(jobs[: max(1, len(jobs) // 2)], options, on_record, **more)
        raise runner.NotAllRun("the licence server is gone. Some cases were not run.")

    monkeypatch.setattr(runner, "run_jobs", run_jobs)


@pytest.mark.usefixtures("without_workers")
@pytest.mark.parametrize("repeat", [1, 2])
def test_a_run_that_lost_its_adapter_is_no_pass(
    repeat: int, tmp_path: Path, run_gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases = write_cases(tmp_path / "cases", CASES[:2])
    common = ("-b", "b", "--reports", tmp_path, "--workers", 1, "--cases", cases, "-a", ADAPTER, "--repeat", repeat)
    assert run_gate(*common, "--update").code == 0
    before = (tmp_path / "baselines" / "b.jsonl").read_text()
    lose_the_adapter(monkeypatch)
    # With --repeat 2 every case has a record, and only the second of each is missing.
    answer = run_gate(*common)
    assert (answer.code, answer.err) == (2, "the licence server is gone. Some cases were not run.")
    assert "gate: no answer, not all was run" in answer.out
    body = json.loads(run_gate(*common, "--json").out)
    assert (body["exit_code"], body["passed"], body["not_run"]) == (2, False, answer.err)
    assert run_gate(*common, "--update").code == 2
    assert (tmp_path / "baselines" / "b.jsonl").read_text() == before


@pytest.mark.usefixtures("without_workers")
def test_a_failure_counts_for_more_than_what_was_not_run(
    tmp_path: Path, run_gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases = write_cases(tmp_path / "cases", (WINDOWED, WINDOWED.replace(requests=(Request(9, 2),))))
    common = ("-b", "b", "--reports", tmp_path, "--workers", 1, "--cases", cases, "-a", ADAPTER)
    assert run_gate(*common, "--update").code == 0
    lose_the_adapter(monkeypatch)
    monkeypatch.setenv("SWITCHABLE_FAULT", "1")
    answer = run_gate(*common)
    assert answer.code == 1
    assert "NEW FAILURE (1)" in answer.out
    assert "not all was run: the licence server is gone." in answer.out


def test_two_gates_at_once_do_not_damage_each_others_files(tmp_path: Path) -> None:
    cases = write_cases(tmp_path / "cases", CASES)
    common = ("-b", "b", "--reports", tmp_path, "--cases", cases, "-a", ADAPTER, "--workers", 1, "--update")
    runs = [start(*common), start(*common)]
    for run in runs:
        out, err = run.communicate(timeout=120)
        assert run.returncode == 0, (out, err)
    files = list(tmp_path.glob("gate-*.jsonl"))
    assert len(files) == 2
    assert [len(list(read_records(file))) for file in files] == [3, 3]
    assert {entry.case_id for entry in read_baseline(tmp_path / "baselines" / "b.jsonl").values()} == {
        case.id for case in CASES
    }
