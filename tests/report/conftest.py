"""The report's tests use the gate's synthetic records, and call the command as the command line does."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import typer

sys.path.append(str(Path(__file__).parents[1] / "gate"))

from cases.errors import CaseError
from harness.cli.report import report
from harness.errors import UsageError


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str


@pytest.fixture
def run_report(capsys: pytest.CaptureFixture[str]) -> Callable[..., Answer]:
    """`attn-harness report ARGUMENTS`: its exit code and what it printed."""
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(report)

    def call(*arguments: object) -> Answer:
        capsys.readouterr()
        try:
            code = app([str(argument) for argument in arguments], standalone_mode=False) or 0
        except (UsageError, CaseError) as problem:
            return Answer(2, capsys.readouterr().out, str(problem))
        printed = capsys.readouterr()
        return Answer(code, printed.out, printed.err)

    return call
