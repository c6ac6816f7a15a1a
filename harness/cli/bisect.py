"""`attn-harness bisect`: the first of several environments in which a case's verdict changes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from cases.corpus_io import load_case_file
from cases.schema import AttentionCase
from harness.errors import UsageError
from harness.record import Record
from harness.running.options import Job, RunOptions
from harness.running.runner import make_worker
from harness.verdict import Verdict

SHOWN = ("sglang", "vllm", "flashinfer-python", "flash-attn-4", "flash-attn", "torch")


@dataclass(frozen=True, slots=True)
class Step:
    """One environment and what the case gave there."""

    python: str
    record: Record


def first_change(steps: list[Step]) -> int | None:
    """Index of the first environment whose verdict differs from the one before it; None if none does.

    A verdict ERROR (the harness) or UNSUPPORTED (not run) says nothing about the environment and is passed over.
    """
    known: Verdict | None = None
    for index, step in enumerate(steps):
        verdict = step.record.verdict
        if verdict in (Verdict.ERROR, Verdict.UNSUPPORTED):
            continue
        if known is not None and verdict is not known:
            return index
        known = verdict
    return None


def examine_everywhere(case: AttentionCase, adapter: str, pythons: list[str], options: RunOptions) -> list[Step]:
    """Run the case in every environment, in order. Raises UsageError where one cannot run the adapter."""
    steps = []
    for python in pythons:
        worker = make_worker(0, python)
        try:
            steps.append(Step(python, worker.examine(Job(case, adapter), options)))
        except UsageError as problem:
            raise UsageError(f"in {python}: {problem}") from None
        finally:
            worker.stop()
    return steps


def step_lines(step: Step) -> str:
    """An environment with its versions, and under it what the case gave there."""
    record = step.record
    versions = ", ".join(f"{n} {record.versions[n]}" for n in SHOWN if n in record.versions)
    error = "" if record.max_abs_diff is None else f", max-abs-diff {record.max_abs_diff:.4g}"
    reason = f": {record.reason}" if record.reason else ""
    return f"{step.python}  ({versions})\n    {record.verdict}{error}{reason}"


def bisect(
    adapter: Annotated[str, typer.Option("--adapter", "-a", help="Adapter name, or path/to/file.py:ClassName.")],
    case: Annotated[Path, typer.Option("--case", help="The case's JSON file.")],
    python: Annotated[list[str], typer.Option("--python", help="Interpreter of an environment; in order, repeatable.")],
    evidence: Annotated[
        str, typer.Option("--evidence", help="default, certificate, metamorphic, all, bound or atol.")
    ] = "default",
    as_json: Annotated[bool, typer.Option("--json", help="Print every environment's answer as JSON.")] = False,
) -> None:
    """Name the first environment, in the order given, in which the case's verdict changes.

    Every environment is run, not half of them: a verdict may change more than once. Exit code 0 if a
    change was found, 1 if there is none.

    Example: `attn-harness bisect -a sglang-flashinfer --case reports/failures/ID.json
    --python old/bin/python --python new/bin/python`
    """
    if len(python) < 2:
        raise UsageError("bisect compares environments; give --python at least twice.")
    steps = examine_everywhere(load_case_file(case), adapter, python, RunOptions(evidence=evidence, rerun=False))
    at = first_change(steps)
    if as_json:
        told = [{"python": step.python, "record": step.record.to_json()} for step in steps]
        print(json.dumps({"steps": told, "first_changed": None if at is None else steps[at].python}))
        raise typer.Exit(1 if at is None else 0)
    console = Console(soft_wrap=True, markup=False, highlight=False)
    for step in steps:
        console.print(step_lines(step))
    if at is None:
        console.print("the verdict is the same everywhere.")
        raise typer.Exit(1)
    console.print(f"first changed in {steps[at].python}: {steps[at].record.verdict}.")
    raise typer.Exit(0)
