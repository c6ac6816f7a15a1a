"""Adapters that misbehave, on the command line: a sentence and the right exit code, never a traceback."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from test_bad_use import run_main

from harness.cli.selection import select_adapters
from tests.child_processes import child_process, children_of, is_alive

ENDING = Path(__file__).with_name("ending.py")
FILE = Path(__file__).parents[1] / "running" / "misbehaving.py"
LOADING = Path(__file__).with_name("loading.py")


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


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("exits as if all were right", "died with exit code 0"),
        ("kills", "died with signal SIGKILL"),
        ("hangs", "it took more than 0.5 seconds"),
    ],
)
@pytest.mark.parametrize(
    "command",
    [
        "doctor -a {file}:MyKernel",
        "run -s quick -a {file}:MyKernel",
        "fuzz --examples 1 -a {file}:MyKernel",
        "gate -b new -s quick --update -a {file}:MyKernel",
        "bench -a {file}:MyKernel",
        "faults --fault {file}:Fault",
    ],
)
def test_a_file_that_ends_whoever_loads_it_is_one_sentence(
    how: str,
    says: str,
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LOADING", how)
    monkeypatch.setattr("harness.cli.outside.LOAD_LIMIT", 0.5 if how == "hangs" else 60.0)
    assert run_main(monkeypatch, *command.format(file=LOADING).split()) == 2
    said = capfd.readouterr()
    (sentence,) = (said.out + said.err).splitlines()
    assert f"{LOADING}:" in sentence
    assert says in sentence
    assert not list(tmp_path.iterdir()), "nothing was run"


def test_what_a_file_prints_while_it_is_loaded_is_no_part_of_the_answer(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LOADING", "prints")
    assert run_main(monkeypatch, "doctor", "-a", f"{LOADING}:MyKernel", "--json") == 0
    assert json.loads(capfd.readouterr().out)["checked"][0]["verdict"] == "PASS"


@pytest.mark.parametrize(
    ("declared", "says"),
    [
        ("name = property(lambda self: 1 / 0)", "has a member 'name' that cannot be read: ZeroDivisionError"),
        ("p_dtype = ['bfloat16']", "declares p_dtype = ['bfloat16']; make it"),
    ],
)
def test_members_that_cannot_be_read_or_looked_up_are_problems_of_the_adapter(
    declared: str,
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "kernel.py"
    file.write_text(f"from my_kernel import MyKernel\nclass Kernel(MyKernel):\n    {declared}\n")
    monkeypatch.syspath_prepend(str(LOADING.parents[2] / "docs" / "examples"))
    assert run_main(monkeypatch, "doctor", "-a", f"{file}:Kernel") == 2
    said = capfd.readouterr()
    assert says in said.out
    assert said.err == ""


def test_a_file_is_left_to_the_environment_that_it_is_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOADING", "kills")
    assert select_adapters([f"{LOADING}:MyKernel"], entries=[]) == [f"{LOADING}:MyKernel"]


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
    with child_process(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        until = time.monotonic() + 60
        while not (children := children_of(process.pid)) and time.monotonic() < until:
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 130
        assert children
        assert not any(map(is_alive, children))


@pytest.mark.parametrize("command", ["explain --seconds 0.5", "xray"])
def test_an_adapter_that_hangs_is_a_timeout(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("harness.cli.explain.HANG_LIMIT", 3.0)
    verb, *options = command.split()
    assert run_main(monkeypatch, verb, "d68d61db84db", "-a", f"{FILE}:Loops", *options, "--json") == 1
    said = capsys.readouterr()
    assert json.loads(said.out)["verdict"] == "TIMEOUT"
    assert "it took more than 3" in said.err
    assert said.err.count("\n") == 1
