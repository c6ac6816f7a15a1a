"""The folder of a finding: everything that somebody who was not there needs.

case.json         the shrunk case, with the adapter, the fault (if one was planted) and what is known of it
original.json     the case that first failed
explanation.txt   what it does wrong, where, and how to run it again
record.json       the record of the shrunk case: verdict, evidence, versions, device, stability
repro.py          stand-alone, where the library can be had without this project
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cases.corpus_io import read_case_json
from cases.errors import CaseError
from cases.schema import AttentionCase
from harness.errors import UsageError
from harness.fuzzing.finding import Finding, name_of, short_name
from harness.fuzzing.repro import EMULATED, write_repro
from harness.loading import is_file_spec
from harness.record_files import replace_text

CASE, ORIGINAL, EXPLANATION, RECORD = "case.json", "original.json", "explanation.txt", "record.json"


NOT_YET = "repro.py: not written yet."


def write_finding(findings: Path, finding: Finding, python: str = sys.executable) -> Path:
    """Write the folder of a finding under `findings`; returns it."""
    folder = begin_finding(findings, finding)
    add_repro(folder, finding, python)
    return folder


def begin_finding(findings: Path, finding: Finding) -> Path:
    """Everything but repro.py, at once; returns the folder. A name that is taken gets a number."""
    name = name_of(finding)
    folder = findings / name
    number = 2
    while folder.exists():
        folder = findings / f"{name}-{number}"
        number += 1
    folder.mkdir(parents=True)
    _write_json(folder / CASE, _case_body(finding, finding.record.case))
    _write_json(folder / ORIGINAL, _case_body(finding, finding.original.case))
    _write_json(folder / RECORD, finding.record.to_json())
    replace_text(folder / EXPLANATION, explanation_text(finding, folder, NOT_YET))
    return folder


def add_repro(
    folder: Path, finding: Finding, python: str = sys.executable, halted: Callable[[], bool] = lambda: False
) -> None:
    """Write repro.py, try it with `python` where that can be, and say in the explanation what it is worth.

    The trial is cut short once `halted` is true.
    """
    said = write_repro(finding, folder, can_run=_repro_can_run(finding), python=python, halted=halted)
    replace_text(folder / EXPLANATION, explanation_text(finding, folder, said))


def _repro_can_run(finding: Finding) -> bool:
    """True where the library that the script calls is the one that was under test, and the device is here."""
    if finding.adapter.endswith(EMULATED):
        return False
    on_cpu = finding.record.device in ("", "cpu")
    return not on_cpu or is_file_spec(finding.adapter) or finding.adapter.startswith("torch-")


def _write_json(path: Path, body: dict[str, Any]) -> None:
    replace_text(path, json.dumps(body, indent=1) + "\n")


def _case_body(finding: Finding, case: AttentionCase) -> dict[str, Any]:
    record, told = finding.record, finding.explanation
    return {
        "case": case.to_json(),
        "finding": {
            "adapter": finding.adapter,
            "name": short_name(finding.adapter),
            "planted": record.fault,
            "verdict": str(record.verdict),
            "kind": finding.kind,
            "edge": finding.edge,
            "fault": told.fault,
            "class": told.fault_class,
            "reason": record.reason,
            "versions": record.versions,
            "device": record.device,
            "time": record.time,
        },
    }


def explanation_text(finding: Finding, folder: Path, repro: str) -> str:
    """What explanation.txt says; `repro` is what repro.py is worth."""
    record = finding.record
    planted = f" --fault {record.fault}" if record.fault else ""
    lines = [
        f"{record.verdict}: {finding.adapter}",
        record.reason,
        "",
        f"case {record.case.id}: {record.case.name}",
        f"shrunk in {finding.shrink_runs} runs from {finding.original.case.id}: {finding.original.case.name}",
        f"first seen after {finding.examples} generated cases; run three times: {record.stability or 'not done'}",
        f"shows with: {finding.edge}",
        "",
        *finding.explanation.lines,
        "",
        *(f"{name} {version}" for name, version in record.versions.items()),
        f"device: {record.device or 'cpu'}",
        "",
        repro,
        f"again:   attn-harness replay {folder / CASE} --adapter {finding.adapter}{planted}",
        f"promote: attn-harness promote {folder}",
    ]
    return "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True)
class FindingFolder:
    """What a folder says of a finding."""

    path: Path
    case: AttentionCase
    about: dict[str, Any]


def read_finding(path: Path) -> FindingFolder:
    """The finding of a folder, or of the case.json in it. Raises UsageError for anything else."""
    folder = path.parent if path.name == CASE else path
    try:
        case, beside = read_case_json(folder / CASE)
    except CaseError as problem:
        raise UsageError(f"{path} is no finding: {problem}") from None
    about = beside.get("finding")
    if not isinstance(about, dict):
        raise UsageError(f"{folder / CASE} is a case but no finding; give a folder under reports/fuzz/*/findings/.")
    return FindingFolder(folder, case, about)
