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


def gather_evidence(runs: Runs, options: RunOptions, poison: Poison) -> Outcome:
    """Run the adapter as often as the evidence asked for needs, and judge each output."""
    case, adapter = runs.case, runs.adapter
    atol = default_atol(case.dtype) if options.atol is None else options.atol
    batch, output = runs.run(None, poison)
    golden = golden_attention(case, batch.data)
    flat = compare_output(case, output.out, golden.out, atol)
    evidence = [
        flat,
        compare_lse(case, output.lse, _golden_lse(adapter, batch, golden.lse), adapter.lse_base, adapter.empty_row),
    ]
    return Outcome(tuple(evidence), flat.measure.get("max_abs_diff"), atol)


def _golden_lse(adapter: Adapter, batch: AttentionBatch, with_sink: Tensor) -> Tensor:
    """Golden LSE [total_q, num_qo_heads] by the adapter's convention for sinks."""
    if batch.data.sinks is None or adapter.lse_includes_sink:
        return with_sink
    data = batch.data
    return golden_attention(batch.case, LogicalData(data.q, data.k, data.v, None)).lse
