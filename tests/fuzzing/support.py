"""What the tests of fuzzing share: a listener that keeps everything, and engines over kernels in this process."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from cases.schema import AttentionCase
from harness.fuzzing.drawing import cases_for
from harness.fuzzing.engine import Engine
from harness.fuzzing.engine_options import EngineOptions
from harness.fuzzing.finding import Finding
from harness.fuzzing.kernels import LocalKernels
from harness.record import Record
from harness.running.options import RunOptions


@dataclass
class Kept:
    """Everything that an engine told."""

    records: list[Record] = field(default_factory=list)
    steps: list[Record] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    def on_record(self, record: Record) -> None:
        self.records.append(record)

    def on_shrink(self, record: Record) -> None:
        self.steps.append(record)

    def on_finding(self, finding: Finding) -> None:
        self.findings.append(finding)

    @property
    def drawn(self) -> list[AttentionCase]:
        return [record.case for record in self.records]


def local_engine(adapter: str, fault: str | None = None, kernels: Any = None, **options: Any) -> tuple[Engine, Kept]:
    """An engine whose kernels run here, and its listener."""
    kernels = kernels or LocalKernels(adapter, fault)
    kept = Kept()
    cases = cases_for(kernels.declaration(), options.get("profile", "quick"), kernels.mend)
    run_options = RunOptions(fault=fault, rerun=False)
    return Engine(cases, kernels, EngineOptions(adapter, **options), run_options, kept), kept
