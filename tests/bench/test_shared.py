"""Several processes on one device: started once for all mixes, ended however the bench ends, and nothing lost."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from harness.bench import shared as module
from harness.bench.measure import run_cases
from harness.bench.mixes import MIXES, Mix
from harness.bench.shared import SEEDS_APART, Together, member
from harness.cli import bench as command
from harness.cli.main import app, register
from harness.errors import UsageError
from tests.child_processes import child_process, descendants, is_alive

ADAPTER = "flashinfer-swa-merge@emulated"
SMALL = ("--cases", "1", "--runs", "1", "--seconds", "0.2", "--no-loops", "--processes", "2", "-a", ADAPTER)


@pytest.fixture
def small_mixes(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process; the others measure those of the bench."""
    for name in ("short", "serving"):
        monkeypatch.setitem(MIXES, name, Mix(name, "small enough for a test", 3, 48, 8, window_left=15))


def invoke(*arguments: str) -> Any:
    register("bench")
    return CliRunner().invoke(app, ["bench", *arguments])


def wait_until(seen: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until and not seen():
        time.sleep(0.02)
    assert seen()


def test_processes_are_started_once_for_all_mixes(
    small_mixes: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started: list[Any] = []
    written: list[list[tuple[str, int]]] = []
    asked: list[dict[str, Any]] = []

    class Counted(subprocess.Popen[str]):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            started.append(self)

    class Watched(Together):
        def _ask(self, request: dict[str, Any]) -> list[dict[str, Any]]:
            asked.append(request)
            return super()._ask(request)

    def write(path: Path, text: str) -> None:
        written.append([(row["mix"], row["processes"]) for row in json.loads(text)["measurements"]])
        path.write_text(text, encoding="utf-8")

    monkeypatch.setattr(module.subprocess, "Popen", Counted)
    monkeypatch.setattr(command, "Together", Watched)
    monkeypatch.setattr(command, "replace_text", write)
    path = tmp_path / "bench.json"
    ran = invoke("-m", "short", "-m", "short", *SMALL, "--output", str(path))  # of full size in the processes
    assert ran.exit_code == 0, ran.output
    assert len(started) == 2
    assert all(process.returncode == -signal.SIGKILL for process in started), "ended, and waited for"
    examined, spared = ({"warm": "examine"}, {"examine": 0.2}), ({"warm": "alone"}, {"alone": 0.2})
    assert asked == [{"mix": "short"}, *examined, *spared, {"rest": True}] * 2
    alone, together = ("short", 1), ("short", 2)
    assert written[:4] == [[alone], [together], [together, alone], [together, together]]
    rows = json.loads(path.read_text(encoding="utf-8"))["measurements"]
    for row in rows:
        rate, alone_rate = (row[f"shared_{name}cases_per_second"]["median"] for name in ("", "alone_"))
        assert row["shared_wall_share"] == pytest.approx(max(0.0, 1 - rate / alone_rate))
    assert ran.output.count("of wall together") == 2, "a column and its meaning"


def test_a_process_examines_what_it_is_asked_for(
    small_mixes: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: list[str] = []

    def run(cases: list[Any], *arguments: Any) -> Any:
        seen.extend(case.id for case in cases)
        return run_cases(cases, *arguments)

    monkeypatch.setattr(module, "run_cases", run)
    monkeypatch.setattr(module, "forget", lambda: seen.append("forgotten"))
    of_mix = [{"warm": "examine"}, {"examine": 1e-9}, {"warm": "alone"}, {"alone": 1e-9}, {"rest": True}]
    lines: list[dict[str, Any]] = [{"mix": "short"}, *of_mix, {"mix": "serving"}, *of_mix]
    answers = io.StringIO()
    member(ADAPTER, "bound", tmp_path, 1, io.StringIO("".join(json.dumps(line) + "\n" for line in lines)), answers)
    answered = [json.loads(line) for line in answers.getvalue().splitlines()]
    windows = [answer["rate"] for answer in answered if "rate" in answer]
    assert len(answered) == len(lines)
    assert len(windows) == 4
    assert min(windows) > 0
    assert [answer for answer in answered if "rate" not in answer] == [{"ready": True}] * 8
    wanted = [MIXES[name].case(2 * SEEDS_APART + number).id for name in ("short", "serving") for number in (0, 1)]
    assert seen == [*wanted[:2], "forgotten", *wanted[2:], "forgotten"]


def test_a_killed_process_is_told_and_the_others_end() -> None:
    with Together(ADAPTER, 2) as together:
        assert together.members == []
        examined, alone = together.measure("short", runs=2, seconds=0.1)
        assert len(examined.rates) == len(alone.rates) == 2
        killed, other = together.members
        killed.kill()
        with pytest.raises(UsageError, match=r"process 1 of 2 of the bench on .* before its time: killed by SIGKILL"):
            together.measure("short", runs=1, seconds=0.1)
        assert other.stdin is not None
        other.stdin.close()
        assert other.wait(20) == 0, "its parent is gone as far as it can see"
    assert killed.returncode == -signal.SIGKILL


def test_a_process_says_itself_why_it_cannot(capfd: pytest.CaptureFixture[str]) -> None:
    with Together("no-such-adapter", 1) as together:
        with pytest.raises(UsageError, match="no-such-adapter"):
            together.measure("short", runs=1, seconds=0.1)
        (process,) = together.members
    assert not is_alive(process.pid)
    assert "Traceback" not in "".join(capfd.readouterr())


def test_sigterm_keeps_what_was_measured_and_leaves_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    path = tmp_path / "bench.json"
    words = ["bench", "-m", "short", "-m", "serving", *SMALL, "--output", str(path)]
    with child_process(
        [sys.executable, "-m", "harness.cli.main", *words],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        wait_until(lambda: path.exists() and len(descendants(process.pid)) == 2)
        members = descendants(process.pid)
        process.send_signal(signal.SIGTERM)
        told, said = process.communicate(timeout=30)
    assert (process.returncode, said) == (143, "attn-harness: terminated; what was done so far is kept.\n")
    (row,) = json.loads(path.read_text(encoding="utf-8"))["measurements"]
    assert (row["mix"], row["shared_cases_per_second"]) == ("short", None)
    assert f"{row['cases_per_second']['median']:.1f}" in told
    assert not any(map(is_alive, members))
    assert list(tmp_path.iterdir()) == [path], "no file of a process is left"


def test_growth_keeps_its_rows_when_it_is_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def rows(*_: Any, **__: Any) -> Any:
        yield {"axis": "tokens", "value": 1024, "milliseconds": {"golden": 1.0}}
        assert len(json.loads(path.read_text(encoding="utf-8"))["growth"]) == 1, "written at once"
        raise KeyboardInterrupt

    path = tmp_path / "bench.json"
    monkeypatch.setattr(command, "measure_growth", rows)
    ran = invoke("--growth", "-a", ADAPTER, "--output", str(path))
    assert ran.exit_code != 0
    assert f"tokens 1024  {ADAPTER}" in ran.output
    assert [row["value"] for row in json.loads(path.read_text(encoding="utf-8"))["growth"]] == [1024]
