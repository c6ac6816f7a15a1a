"""`attn-harness replay`: one case file again, through one or more adapters."""

from __future__ import annotations

import sys
from pathlib import Path

import typer

from harness.cli.explain import CaseArgument, find_case
from harness.cli.run import (
    AdapterOption,
    AtolOption,
    EvidenceOption,
    FaultOption,
    JsonOption,
    PythonOption,
    RepeatsOption,
    ReportsOption,
    run_and_record,
)
from harness.cli.selection import make_jobs, say_not_run, select_adapters
from harness.cli.summary import exit_code
from harness.running.elsewhere import entries_for
from harness.running.options import RunOptions


def replay(
    case: CaseArgument,
    adapter: AdapterOption = None,
    fault: FaultOption = None,
    evidence: EvidenceOption = "default",
    atol: AtolOption = None,
    repeats: RepeatsOption = 20,
    python: PythonOption = sys.executable,
    reports: ReportsOption = Path("reports"),
    as_json: JsonOption = False,
) -> None:
    """Run one case again and say what comes out: a file, or the id of a case in a suite.

    Examples:

    - `attn-harness replay d68d61db84db --adapter torch-sdpa`
    - `attn-harness replay reports/failures/0123456789ab.json --adapter flash-attn-4`
    """
    loaded = find_case(case)
    options = RunOptions(evidence=evidence, atol=atol, fault=fault, repeats=repeats)
    entries = entries_for(python)
    jobs = make_jobs(select_adapters(adapter or (), entries), [(None, loaded)])
    say_not_run(adapter or (), entries)
    raise typer.Exit(exit_code(run_and_record(jobs, options, reports, python=python, as_json=as_json)))
