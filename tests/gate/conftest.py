"""Calling the commands as the command line does, in this process."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import typer

from cases.errors import CaseError
from harness.cli.gate import gate
from harness.errors import UsageError
from harness.record import Record


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str


@pytest.fixture
def without_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cases are examined in this process: quick, for tests that are not about isolation."""
    import torch

    from harness.adapters.registry import load_adapter
    from harness.running import runner
    from harness.running.examine import examine

    def run_jobs(jobs, options, on_record: Callable[[Record], None], **_: object) -> None:
        for job in jobs:
            record = examine(job.case, load_adapter(job.adapter), options, torch.device("cpu"))
            on_record(record.replace(suite=job.suite, versions={"torch": torch.__version__}, device="cpu"))

    monkeypatch.setattr(runner, "run_jobs", run_jobs)


@pytest.fixture
def run_gate(capsys: pytest.CaptureFixture[str]) -> Callable[..., Answer]:
    """`attn-harness gate ARGUMENTS`: its exit code and what it printed."""
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(gate)

    def call(*arguments: object) -> Answer:
        capsys.readouterr()
        try:
            code = app([str(argument) for argument in arguments], standalone_mode=False) or 0
        except (UsageError, CaseError) as problem:
            return Answer(2, capsys.readouterr().out, str(problem))
        printed = capsys.readouterr()
        return Answer(code, printed.out, printed.err)

    return call
