"""The examples that --help shows: those that need no GPU and no file of somebody's run, in their order."""

from __future__ import annotations

import importlib
import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
from test_bad_use import run_main
from test_readme import ROOT

from harness.cli.main import COMMANDS

# A GPU's adapters and baselines, files that another example does not make, and what takes minutes.
ELSEWHERE = re.compile(
    r"flash-attn-\d(?!@emulated)|'flashinfer-\*'|h200|0123456789ab|SESSION|ID\.json|shard-|--compare|--prebuild|--import|"
    r"--suite smoke|--blame|--fuzz|oracle --json"
)
NEED_A_GPU_OR_A_FINDING = {"promote", "bisect"}


def examples(command: str) -> list[str]:
    module, function = COMMANDS[command].split(":")
    text = getattr(importlib.import_module(f"harness.cli.{module}"), function).__doc__
    return [" ".join(found.split()) for found in re.findall(r"`attn-harness ([^`]+)`", text)]


def run_here(command: str) -> list[str]:
    return [example for example in examples(command) if not ELSEWHERE.search(example)]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_examples_of_its_own_and_json(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert examples(command)
    assert all(example.split()[0] == command for example in examples(command))
    assert bool(run_here(command)) != (command in NEED_A_GPU_OR_A_FINDING)
    assert run_main(monkeypatch, command, "--help") == 0
    assert "--json" in capsys.readouterr().out


def test_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    shutil.copy(ROOT / "docs" / "examples" / "my_kernel.py", tmp_path)
    monkeypatch.chdir(tmp_path)
    for command in COMMANDS:
        for example in run_here(command):
            finds = "--fault " in example and command != "faults"
            code = run_main(monkeypatch, *shlex.split(example))
            said = capfd.readouterr()
            assert code == int(finds), (example, said)
            assert said.out + said.err, example
            if "--json" in example:
                json.loads(said.out)
