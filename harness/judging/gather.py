"""Which evidence a case is given, and gathering it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from cases.batch import AttentionBatch
from cases.recipes import LogicalData
from cases.schema import AttentionCase, Poison
from harness.adapters.protocol import Adapter, AttentionOutput
from harness.judging.compare import compare_lse, compare_output
from harness.judging.tolerances import default_atol
from harness.running.options import RunOptions
from harness.verdict import Evidence
from references.golden import golden_attention


class Runs(Protocol):
    """What evidence needs of the one who runs the adapter (harness.running.examine.Examiner)."""

    case: AttentionCase
    adapter: Adapter

    def run(self, data: LogicalData | None, poison: Poison) -> tuple[AttentionBatch, AttentionOutput]: ...


@dataclass(frozen=True, slots=True)
class Outcome:
    """All evidence of one case at one poison level."""

    evidence: tuple[Evidence, ...]
    max_abs_diff: float | None
    atol: float

    @property
    def failures(self) -> tuple[Evidence, ...]:
        """The evidence that decides and did not hold."""
        return tuple(e for e in self.evidence if e.decides and e.passed is False)
