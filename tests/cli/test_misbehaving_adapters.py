"""Adapters that misbehave, on the command line: a sentence and the right exit code, never a traceback."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from test_bad_use import run_main

ENDING = Path(__file__).with_name("ending.py")
FILE = Path(__file__).parents[1] / "running" / "misbehaving.py"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("RaisesInARule", "ZeroDivisionError"),
        ("RefusesWithoutAReason", "returned ''; return a reason"),
        ("RefusesWithANumber", "returned 5; return a reason"),
    ],
)
def test_doctor_tells_a_rule_that_cannot_be_used(
    name: str, says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_main(monkeypatch, "doctor", "-a", f"{FILE}:{name}") == 2
    said = capsys.readouterr().out
    assert said.count("\n") == 1
    assert says in said


def test_doctor_says_the_same_as_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("doctor", "-a", f"{FILE}:RefusesWithANumber", "-a", "torch-sdpa", "--json")
    assert run_main(monkeypatch, *asked) == 2
    refused, fine = json.loads(capsys.readouterr().out)["checked"]
    assert "returned 5; return a reason" in refused["problems"][0]
    assert (refused["verdict"], fine["problems"], fine["verdict"]) == (None, [], "PASS")


@pytest.mark.parametrize("asked", ["-a nope", "--prebuild quick -a nope --arch 9.0a", "--prebuild nope", "--jobs 3"])
def test_doctor_that_cannot_begin_says_so_as_json(
    asked: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_main(monkeypatch, "doctor", *asked.split(), "--json") == 2
    said = capsys.readouterr()
    assert said.err == f"attn-harness: {json.loads(said.out)['error']}\n"


@pytest.fixture
def case(tmp_path: Path) -> str:
    file = tmp_path / "case.json"
    file.write_text(json.dumps({"schema_version": 1, "requests": [[9, 3]], "window_left": 4}))
    return str(file)


@pytest.mark.parametrize("command", ["explain", "xray"])
@pytest.mark.parametrize(
    ("spec", "says"),
    [
        (f"{ENDING}:KillsItself", "died with signal SIGKILL"),
        (f"{FILE}:Exits", "died with exit code 3"),
        (f"{FILE}:RaisesInARule", "capabilities raised ZeroDivisionError"),
        (f"{ENDING}:Interrupts", "the adapter raised KeyboardInterrupt"),
        (f"{ENDING}:ExitsAsIfAllWereRight", "died with exit code 0"),
    ],
)
def test_an_adapter_that_ends_its_process_is_a_crash(
    command: str,
    spec: str,
    says: str,
    case: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert run_main(monkeypatch, command, case, "-a", spec) == 1
    out, err = capfd.readouterr()
    assert out == ""
    said = err.splitlines()[-1]
    assert said.startswith(f"attn-harness: CRASH {spec} on ")
    assert says in said
    assert "Traceback" not in err


def test_an_answer_that_the_adapter_wrote_is_not_believed(case: str) -> None:
    # In a process of its own: it writes to every descriptor, and those of a test runner are not its to write to.
    command = [sys.executable, "-m", "harness.cli.main", "xray", case, "-a", f"{ENDING}:AnswersForUs"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "died with exit code 9" in done.stderr


def test_what_raises_when_it_prepares_has_no_xray(
    case: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run_main(monkeypatch, "xray", case, "-a", f"{ENDING}:PreparesToExit") == 1
    out, err = capfd.readouterr()
    assert out == ""
    assert "prepare raised SystemExit: 0 (at " in err
    assert "ending.py:17)" in err


def test_what_an_adapter_prints_is_no_part_of_the_answer(
    case: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run_main(monkeypatch, "explain", case, "--json", "-a", f"{FILE}:Prints") == 0
    assert json.loads(capfd.readouterr().out)["verdict"] == "PASS"
    assert run_main(monkeypatch, "explain", case, "--json", "-a", f"{ENDING}:KillsItself") == 1
    assert json.loads(capfd.readouterr().out)["verdict"] == "CRASH"


def test_ctrl_c_ends_the_child_too(case: str) -> None:
    command = [sys.executable, "-m", "harness.cli.main", "explain", case, "-a", f"{FILE}:Hangs"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    until = time.monotonic() + 60
    while not (child := children.read_text().split()) and time.monotonic() < until:
        time.sleep(0.1)
    os.kill(process.pid, signal.SIGINT)
    assert process.wait(timeout=30) == 130
    assert child
    assert not Path(f"/proc/{child[0]}").exists()
