"""`attn-harness explain`: what a kernel does wrong on one case, in attention terms."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, NoReturn

import torch
import typer

from cases.corpus_io import load_case_file
from cases.schema import AttentionCase
from cases.suites import SUITES, load_suite
from harness.adapter_check import refuse_incomplete
from harness.adapters.protocol import Adapter
from harness.adapters.registry import load_adapter
from harness.cli.apart import AdapterDied, AdapterHangs, Answer, answer_apart
from harness.diagnosis.explaining import Explanation
from harness.diagnosis.explaining import explain as explain_record
from harness.errors import UsageError
from harness.faults.registry import equip, load_fault
from harness.running.asking import why_unsupported
from harness.running.examine import AdapterFailure, Examiner, Stopwatch, examine
from harness.running.options import LONGEST_LIMIT, RunOptions
from harness.running.worker import pick_device
from harness.verdict import Verdict

HANG_LIMIT = 1800.0  # seconds: more than the diagnosis of a long case takes, with what a library compiles for it

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

    Exit code 0 if the case passes, 1 if there was something to explain, a crash of the adapter included.

    Examples:

    - `attn-harness explain d68d61db84db --adapter flash-attn-3@emulated --fault window-one-too-wide`
    - `attn-harness explain reports/failures/0123456789ab.json --adapter flash-attn-4`
    """
    if not 0 < seconds <= LONGEST_LIMIT:
        raise UsageError(f"--seconds is {seconds}; give a number above 0, at most {LONGEST_LIMIT:g}.")
    found = find_case(case)
    finish(found, adapter, as_json, lambda: _explain(found, adapter, fault, evidence, seconds, as_json), seconds)


def _explain(
    found: AttentionCase, adapter: str, fault: str | None, evidence: str, seconds: float, as_json: bool
) -> Answer:
    examiner = make_examiner(found, adapter, fault)
    options = RunOptions(evidence=evidence, fault=fault, rerun=False)
    record = examine(found, examiner.adapter, options, examiner.device, mutate_plan=examiner.mutate_plan)
    said = explain_record(examiner, record, seconds=seconds)
    code = 0 if record.verdict is Verdict.PASS else 2 if record.verdict in (Verdict.ERROR, Verdict.UNSUPPORTED) else 1
    if as_json:
        return Answer(_json(found, examiner.adapter.name, str(record.verdict), said), code)
    lines = [f"{found.name} ({found.id}) through {examiner.adapter.name}: {record.verdict} {record.reason}".rstrip()]
    lines += [f"  {line}" for line in said.lines]
    lines += [f"  = {name}: {load_fault(name).summary}" for name in said.equals]
    return Answer("\n".join(lines), code)


def _json(case: AttentionCase, adapter: str, verdict: str, said: Explanation) -> str:
    return json.dumps(
        {
            "case": case.id,
            "adapter": adapter,
            "verdict": verdict,
            "lines": list(said.lines),
            "fault": said.fault,
            "fault_class": said.fault_class,
            "residual": said.residual,
            "equals": list(said.equals),
        }
    )


def finish(
    case: AttentionCase, adapter: str, as_json: bool, work: Callable[[], Answer], seconds: float = 0.0
) -> NoReturn:
    """Do the work in a child, print what it answers and end the command: an adapter that dies there is a CRASH, one
    that hangs a TIMEOUT. `seconds`: what the work may take beside running the adapter."""
    try:
        answer = answer_apart(work, HANG_LIMIT + seconds)
    except AdapterDied as death:
        verdict = Verdict.TIMEOUT if isinstance(death, AdapterHangs) else Verdict.CRASH
        if as_json:
            print(_json(case, adapter, str(verdict), Explanation((f"{death}.",))))
        typer.echo(f"attn-harness: {verdict} {adapter} on {case.name} ({case.id}): {death}.", err=True)
        raise typer.Exit(1) from None
    print(answer.text)
    raise typer.Exit(answer.code)


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
    """Runs `adapter`, with a fault in it if one is named, on `case` in this process.

    Raises UsageError, and AdapterDied if the adapter raises when it is asked whether it takes the case.
    """
    made: Adapter
    made, change = (load_adapter(adapter), None) if fault is None else equip(adapter, fault)
    refuse_incomplete(adapter, made)
    try:
        reason = why_unsupported(made, case)
    except AdapterFailure as failure:
        raise AdapterDied(failure.reason) from failure
    if reason is not None:
        raise UsageError(f"{made.name} does not take this case: {reason}.")
    if not torch.cuda.is_available():
        torch.set_num_threads(1)  # small tensors: more threads only wait for each other
    device = pick_device(made)
    return Examiner(case, made, device, Stopwatch(device, lambda _stage: None), change)
