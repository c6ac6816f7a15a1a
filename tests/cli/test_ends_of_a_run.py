"""How a run ends that could not do all: what was found counts, and no process is left."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from cases import AttentionCase, Request
from harness.cli import run as command
from harness.cli.summary import exit_code
from harness.errors import UsageError
from harness.record import Record, read_records
from harness.record_files import load_records, plan_path
from harness.running.options import Job, RunOptions
from harness.verdict import Verdict
from tests.child_processes import child_process, descendants, is_alive

ROOT = Path(__file__).parents[2]
MISBEHAVING = ROOT / "tests" / "running" / "misbehaving.py"
CASE = AttentionCase(requests=(Request(9, 3),))


@pytest.mark.parametrize(("verdicts", "code"), [([Verdict.PASS, Verdict.WRONG], 1), ([Verdict.PASS], None), ([], None)])
def test_a_finding_counts_for_more_than_what_was_not_run(
    verdicts: list[Verdict],
    code: int | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def run_jobs(jobs: Sequence[Job], _: RunOptions, on_record: Callable[[Record], None], **__: object) -> None:
        for verdict in verdicts:
            on_record(Record(jobs[0].case, jobs[0].adapter, verdict))
        raise UsageError("device busy.")

    monkeypatch.setattr(command, "run_jobs", run_jobs)
    if code is None:
        with pytest.raises(UsageError, match="device busy"):
            command.run_and_record([Job(CASE, "a")], RunOptions(), tmp_path)
    else:
        assert exit_code(command.run_and_record([Job(CASE, "a")], RunOptions(), tmp_path)) == code
        assert "not all was run: device busy." in capsys.readouterr().out
    files = list(tmp_path.iterdir())
    if not verdicts:
        assert not files, "bad use before any record: there was no run that could have lost its cases"
        return
    (file,) = tmp_path.glob("run-*.jsonl")
    assert plan_path(file) in files
    assert [record.verdict for record in read_records(file)] == verdicts


def test_an_interrupted_run_keeps_its_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run_jobs(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "run_jobs", run_jobs)
    with pytest.raises(KeyboardInterrupt):
        command.run_and_record([Job(CASE, "a")], RunOptions(), tmp_path)
    assert load_records([tmp_path]).planned == ((CASE.id, "a"),)


def test_an_interrupted_run_says_where_its_records_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run_jobs(jobs: list[Job], options: RunOptions, on_record: Callable[[Record], None], **_: object) -> None:
        on_record(Record(case=CASE, adapter="a", verdict=Verdict.PASS))
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "run_jobs", run_jobs)
    with pytest.raises(KeyboardInterrupt):
        command.run_and_record([Job(CASE, "a")] * 3, RunOptions(), tmp_path)
    (file,) = tmp_path.glob("run-*.jsonl")
    assert f"1 of 3 cases are judged; records: {file}" in "".join(capsys.readouterr().err.split("\n"))


def ticks(pid: int) -> int:
    """Processor time that it used; 0 if it is gone."""
    try:
        return sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]))
    except OSError:
        return 0


def wait_until(seen: Callable[[], bool]) -> None:
    until = time.monotonic() + 120
    while time.monotonic() < until and not seen():
        time.sleep(0.1)
    assert seen()


def test_sigterm_keeps_everything_and_leaves_no_process(tmp_path: Path) -> None:
    arguments = ["run", "--suite", "quick", "-k", "extend", "--workers", "1", "-a", "torch-sdpa"]
    command = [sys.executable, "-m", "harness.cli.main", *arguments, "-a", f"{MISBEHAVING}:Loops"]
    with child_process(command, cwd=tmp_path, stderr=subprocess.PIPE) as process:
        wait_until(lambda: any("PASS" in file.read_text() for file in tmp_path.glob("reports/run-*.jsonl")))
        started = descendants(process.pid)
        assert len(started) == 2, "a nursery and its worker"
        before = {pid: ticks(pid) for pid in started}
        wait_until(lambda: any(ticks(pid) > before[pid] + 200 for pid in started))  # two seconds: it loops
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGTERM)  # as `timeout` does
        _, said = process.communicate(timeout=60)
    assert (process.returncode, "Traceback" in said) == (143, False), said
    assert said.endswith("attn-harness: terminated; what was done so far is kept.\n")
    (file,) = tmp_path.glob("reports/run-*.jsonl")
    assert Verdict.PASS in {record.verdict for record in read_records(file)}
    wait_until(lambda: not any(map(is_alive, started)))
