"""Bad use: one clear sentence, exit code 2, no traceback."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from harness.cli.main import COMMANDS, main

ROOT = Path(__file__).resolve().parents[2]
CASE = {"schema_version": 1, "requests": [[3, 2]]}
FILES = {
    "broken.json": "{broken",
    "negative.json": json.dumps({**CASE, "requests": [[-3, 2]]}),
    "heads.json": json.dumps({**CASE, "num_qo_heads": 7}),
    "future.json": json.dumps({**CASE, "schema_version": 9}),
    "unknown.json": json.dumps({**CASE, "colour": "red"}),
    "good.json": json.dumps(CASE),
    "recipe.json": json.dumps({**CASE, "recipe": "bogus"}),
    "raises.py": 'raise RuntimeError("boom")',
    "partial.py": 'class Kernel:\n    name = "k"\n',
}


def run_main(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["attn-harness", *arguments])
    with pytest.raises(SystemExit) as end:
        main()
    assert isinstance(end.value.code, int)
    return end.value.code


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("replay broken.json -a torch-sdpa", "broken.json"),
        ("replay negative.json -a torch-sdpa", "must not be negative"),
        ("replay heads.json -a torch-sdpa", "num_qo_heads 7 is no multiple of num_kv_heads 2"),
        ("replay future.json -a torch-sdpa", "schema_version is 9"),
        ("replay unknown.json -a torch-sdpa", "colour"),
        ("replay recipe.json -a torch-sdpa", "recipe is 'bogus'"),
        ("replay missing.json -a torch-sdpa", "no such file"),
        ("run --suite nope", "no suite is called 'nope'"),
        ("run --suite quick -a nope", "no adapter 'nope'"),
        ("run --suite quick -a raises.py:Kernel", "raised RuntimeError on import: boom"),
        ("run --suite quick -a partial.py:Other", "has no 'Other'"),
        ("run --suite quick -a partial.py:Kernel", "has no member 'capabilities'"),
        ("run --suite quick -a nowhere.py:Kernel", "does not exist"),
        ("run --suite quick -k nothing-is-called-this", "no case has"),
        ("run --suite quick --atol -1", "--atol is -1.0"),
        ("run --suite quick --evidence guess", "--evidence is 'guess'"),
        ("run --suite quick -a torch-sdpa --fault nope", "no fault 'nope'"),
        ("xray good.json -a torch-sdpa --picture nowhere/x.png", "nowhere; make it first"),
        ("xray good.json -a torch-sdpa --picture .", "a folder; give the name of a PNG file"),
        ("xray good.json -a torch-sdpa --picture x.nonsense", "cannot write"),
        ("run --suite quick -a torch-sdpa --atol inf", "--atol is inf"),
        ("explain good.json -a torch-sdpa --seconds nan", "--seconds is nan"),
        ("bench --seconds nan", "must be above 0"),
        ("bench --threads 9999999999999", "'--threads'"),
        ("faults --processes -3", "'--processes'"),
        ("faults --fuzz 5 --blame", "give one of them"),
        ("gate --baseline= --suite quick", "--baseline is empty"),
        ("gate -b x --suite quick --ledger nope.toml", "--ledger is nope.toml, and there is no such file"),
        ("gate -b x --suite quick --fault-table nope.json", "--fault-table is nope.json, and there is no such file"),
        ("", "name a command. (`attn-harness --help` shows how.)"),
        ("run --bogus", "(`attn-harness run --help` shows how.)"),
        ("run --bogus", "No such option"),
        ("list nonsense", "no list of 'nonsense'"),
        ("bogus", "No such command 'bogus'. (`attn-harness --help` shows how.)"),
    ],
)
def test_one_sentence_and_exit_2(
    command: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    assert run_main(monkeypatch, *command.split()) == 2
    said = capsys.readouterr().err
    assert said.startswith("attn-harness: ")
    assert says in said
    assert said.count("\n") == 1, said


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example(command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_main(monkeypatch, command, "--help") == 0
    assert "attn-harness " in capsys.readouterr().out


@pytest.mark.parametrize("option", ["--suite", "--adapter"])
def test_pytest_tells_a_name_that_there_is_not_in_one_line(option: str) -> None:
    command = [sys.executable, "-m", "pytest", "tests/differential", "-p", "no:cacheprovider", option, "nope"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == pytest.ExitCode.USAGE_ERROR
    said = run.stdout + run.stderr
    assert "ERROR: " in said
    assert "'nope'" in said
    assert "Traceback" not in said
