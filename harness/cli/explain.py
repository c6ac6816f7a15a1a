"""`attn-harness explain`: what a kernel does wrong on one case, in attention terms."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import torch
import typer

from cases.corpus_io import load_case_file
from cases.schema import AttentionCase
from cases.suites import SUITES, load_suite
from harness.adapters.protocol import Adapter
from harness.adapters.registry import load_adapter
from harness.diagnosis.explaining import explain as explain_record
from harness.errors import UsageError
from harness.faults.registry import equip, load_fault
from harness.running.examine import Examiner, Stopwatch, examine
from harness.running.options import RunOptions
from harness.running.worker import pick_device
from harness.verdict import Verdict

CaseArgument = Annotated[str, typer.Argument(help="A case or finding file (JSON), or the id of a case in a suite.")]
OneAdapter = Annotated[str, typer.Option("--adapter", "-a", help="Adapter name, or path/to/file.py:ClassName.")]
PlantedFault = Annotated[str | None, typer.Option("--fault", help="Put this named fault (a+b for two) into it first.")]


def explain(
    case: CaseArgument,
    adapter: OneAdapter,
    fault: PlantedFault = None,
    evidence: Annotated[
        str,
        typer.Option("--evidence", help="What to judge it by: default, certificate, metamorphic, all, bound or atol."),
    ] = "default",
    seconds: Annotated[float, typer.Option(help="Time limit of the diagnosis.")] = 60.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """Run one case and, if it is not right, say what the kernel does wrong.

    Exit code 0 if the case passes, 1 if there was something to explain.

    Example: `attn-harness explain reports/failures/0123456789ab.json --adapter flash-attn-4`
    """
    found = find_case(case)
    examiner = make_examiner(found, adapter, fault)
    options = RunOptions(evidence=evidence, fault=fault, rerun=False)
    record = examine(found, examiner.adapter, options, examiner.device, mutate_plan=examiner.mutate_plan)
    said = explain_record(examiner, record, seconds=seconds)
    if as_json:
        print(
            json.dumps(
                {
                    "case": found.id,
                    "adapter": examiner.adapter.name,
                    "verdict": str(record.verdict),
                    "lines": list(said.lines),
                    "fault": said.fault,
                    "fault_class": said.fault_class,
                    "residual": said.residual,
                    "equals": list(said.equals),
                }
            )
        )
    else:
        print(f"{found.name} ({found.id}) through {examiner.adapter.name}: {record.verdict} {record.reason}".rstrip())
        for line in said.lines:
            print(f"  {line}")
        for name in said.equals:
            print(f"  = {name}: {load_fault(name).summary}")
    if record.verdict in (Verdict.ERROR, Verdict.UNSUPPORTED):
        raise typer.Exit(2)
    raise typer.Exit(0 if record.verdict is Verdict.PASS else 1)


def find_case(spec: str) -> AttentionCase:
    """A case from a file, or by (the start of) its id from the suites. Raises UsageError or CaseError."""
    if spec.endswith(".json") or Path(spec).is_file():
        return load_case_file(Path(spec))
    matches = {case.id: case for suite in SUITES for case in load_suite(suite) if case.id.startswith(spec)}
    if not matches:
        raise UsageError(f"{spec!r} is no case file, and no case of a suite has an id that starts so.")
    if len(matches) > 1:
        raise UsageError(f"{spec!r} starts the ids of {len(matches)} cases; give more digits.")
    return next(iter(matches.values()))


def make_examiner(case: AttentionCase, adapter: str, fault: str | None) -> Examiner:
    """Runs `adapter`, with a fault in it if one is named, on `case` in this process. Raises UsageError."""
    made: Adapter
    made, change = (load_adapter(adapter), None) if fault is None else equip(adapter, fault)
    reason = made.capabilities.unsupported(case)
    if reason is not None:
        raise UsageError(f"{made.name} does not take this case: {reason}.")
    if not torch.cuda.is_available():
        torch.set_num_threads(1)  # small tensors: more threads only wait for each other
    device = pick_device(made)
    return Examiner(case, made, device, Stopwatch(device, lambda _stage: None), change)
