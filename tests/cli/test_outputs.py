"""A reader that leaves, a full disk: neither is a finding, and neither ends a run."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from test_bad_use import run_main

from harness.record import read_records
from harness.record_files import replace_text

HARNESS = [sys.executable, "-m", "harness.cli.main"]


def without_a_reader(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command with a standard output that nobody reads."""
    with subprocess.Popen(["true"], stdin=subprocess.PIPE) as gone:
        gone.wait()
        return subprocess.run(
            [*HARNESS, *arguments], stdout=gone.stdin, stderr=subprocess.PIPE, text=True, timeout=120, check=False
        )


@pytest.mark.parametrize("command", ["list cases --suite smoke", "list schema --json", "run --help", "--help"])
def test_a_closed_pipe_ends_a_command_quietly(command: str) -> None:
    done = without_a_reader(*command.split())
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("adapter", "code"), [("torch-sdpa", 0), ("WrongOnSeed3", 1)])
@pytest.mark.parametrize("form", ["--json", "--verbose"])
def test_a_run_without_a_reader_keeps_every_record_and_tells_the_verdict(
    form: str, adapter: str, code: int, tmp_path: Path
) -> None:
    cases = tmp_path / "cases"
    cases.mkdir()
    for seed in range(2, 5):
        case = {"schema_version": 1, "requests": [[9, 3]], "seed": seed}
        (cases / f"{seed}.json").write_text(json.dumps(case))
    file = Path(__file__).parents[1] / "running" / "misbehaving.py"
    spec = adapter if adapter == "torch-sdpa" else f"{file}:{adapter}"
    reports = tmp_path / "reports"
    done = without_a_reader("run", "--cases", str(cases), "-a", spec, form, "--reports", str(reports))
    assert "Traceback" not in done.stderr
    assert done.returncode == code
    (records,) = reports.glob("*.jsonl")
    assert len(records.read_text().splitlines()) == 3


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("command", ["list cases --suite smoke", "--help"])
def test_a_full_disk_is_one_sentence(command: str) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*HARNESS, *command.split()], stdout=full, stderr=subprocess.PIPE, text=True, timeout=120, check=False
        )
    assert done.returncode == 2
    assert done.stderr.startswith("attn-harness: cannot write to standard output: No space left on device")
    assert done.stderr.count("\n") == 1


def test_what_the_encoding_lacks_is_escaped() -> None:
    code = "from harness.cli.outputs import lasting_outputs\nwith lasting_outputs(): print('caf\\u00e9 \\udc80')"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONIOENCODING": "ascii:strict"},
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout == b"caf\\xe9 \\udc80\n"


def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE, text=True) as reader:
        replace_text(pipe, "a report\n")
        assert stat.S_ISFIFO(pipe.stat().st_mode)
        assert reader.communicate(timeout=30)[0] == "a report\n"
    assert list(tmp_path.iterdir()) == [pipe]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_picture_that_does_not_fit_on_the_disk_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "case.json").write_text(json.dumps({"schema_version": 1, "requests": [[3, 2]]}))
    asked = ("xray", str(tmp_path / "case.json"), "-a", "torch-sdpa", "--picture", "/dev/full")
    assert run_main(monkeypatch, *asked) == 2
    said = capfd.readouterr()
    assert said.err.startswith("attn-harness: cannot write /dev/full: ")
    assert (said.out, said.err.count("\n")) == ("", 1)


@pytest.mark.parametrize(("command", "code"), [("list suites", 0), ("list nope", 2)])
def test_closed_outputs_are_no_finding(command: str, code: int) -> None:
    words = [*HARNESS, *command.split()]
    assert subprocess.run(["sh", "-c", '"$@" <&- >&- 2>&-', "sh", *words], timeout=120, check=False).returncode == code


def test_what_is_opened_while_outputs_are_closed_gets_none_of_what_is_told(tmp_path: Path) -> None:
    file = tmp_path / "opened"
    code = (
        "import os, sys\nfrom harness.cli.outputs import lasting_outputs\n"
        f"with lasting_outputs():\n    file = open({str(file)!r}, 'w')\n"
        "    os.write(1, b'x'); os.write(2, b'x'); print('x'); print('x', file=sys.stderr)"
    )
    words = [sys.executable, "-c", code]
    assert subprocess.run(["sh", "-c", '"$@" <&- >&- 2>&-', "sh", *words], timeout=120, check=False).returncode == 0
    assert file.read_text() == ""


@pytest.mark.parametrize("command", ["run -s quick -a torch-sdpa", "gate -b b -s quick -a torch-sdpa --update"])
def test_records_that_the_disk_does_not_hold_are_one_sentence(command: str, tmp_path: Path) -> None:
    limited = "import resource, signal, os, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (9000, 9000))"
    words = [sys.executable, "-c", f"{limited}; os.execv(sys.argv[1], sys.argv[1:])", *HARNESS, *command.split()]
    done = subprocess.run(
        words,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 2
    (file,) = (tmp_path / "reports").glob("*-*.jsonl")
    said = done.stderr.splitlines()[-1]
    assert said == f"attn-harness: cannot write records to reports/{file.name}: File too large; those before are kept."
    assert len(list(read_records(file))) >= 1
