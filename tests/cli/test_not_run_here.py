"""A glob that names what cannot run here, too: said by name, since a part that ran is not the whole that was asked."""

import dataclasses
import json
from pathlib import Path

import pytest
from test_bad_use import run_main

from harness.adapters.registry import Entry, available
from harness.cli.selection import say_not_run

SAID = "not run here: flash-attn-3 (no CUDA GPU here)"


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    entries = [
        dataclasses.replace(entry, why_not="no CUDA GPU here") if entry.name == "flash-attn-3" else entry
        for entry in available()
    ]
    monkeypatch.setattr("harness.adapters.registry.available", lambda: entries)


@pytest.mark.parametrize(
    "command", ["run --suite quick -k decode", "replay d68d61db84db", "fuzz --examples 1 --seed 1"]
)
def test_what_a_glob_names_and_cannot_run_is_said(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_main(monkeypatch, *command.split(), "-a", "flash-attn-3*") == 0
    assert SAID in capsys.readouterr().err.splitlines()


def test_json_stays_one_record_a_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("run", "--suite", "quick", "-k", "decode", "-a", "flash-attn-3*", "--json")
    assert run_main(monkeypatch, *asked) == 0
    said = capsys.readouterr()
    assert SAID in said.err.splitlines()
    assert {json.loads(line)["adapter"] for line in said.out.splitlines()} == {"flash-attn-3@emulated"}


def test_each_reason_is_said_once_and_nothing_of_what_was_not_named(capsys: pytest.CaptureFixture[str]) -> None:
    reasons = {"a-1": "no GPU", "a-2": None, "b-1": "no GPU", "a-3": "not installed"}
    entries = [Entry(name, lambda hooks: None, why_not, False) for name, why_not in reasons.items()]
    say_not_run(["a-*", "path/to/b-1.py:B"], entries)
    assert capsys.readouterr().err == "not run here: a-1 (no GPU); a-3 (not installed)\n"
    say_not_run(["a-2"], entries)
    say_not_run([], entries)
    assert capsys.readouterr().err == ""
