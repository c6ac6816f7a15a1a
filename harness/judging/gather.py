"""Which evidence a case is given, and gathering it.

    default       the case's own data against its row bound, LSE, FLAT and one more certificate, and what the kernel
                  left in the kv cache
    certificate   the same with every certificate that applies
    metamorphic   the case's own data against its row bound, LSE, and the metamorphic relations
    all           all of the above
    bound         the case's own data against its row bound, and LSE
    atol          the case's own data under a flat tolerance, and LSE

The flat tolerance is always reported; it decides only where it is all there is, or was asked for.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from cases.batch import AttentionBatch
from cases.recipes import LogicalData, make_data
from cases.schema import AttentionCase, Poison
from harness.adapters.protocol import Adapter, AttentionOutput, declared
from harness.judging.cache import compare_cache
from harness.judging.certify import chosen_recipes, judge_certificate
from harness.judging.compare import compare_bound, compare_lse, compare_output
from harness.judging.kept import golden_of
from harness.judging.maps import Maps
from harness.judging.tolerances import default_atol, lse_tolerance
from harness.judging.traits import kernel_traits, row_sum_traits
from harness.metamorphic.checking import RunsVariants, metamorphic_evidence
from harness.running.options import RunOptions
from harness.verdict import Evidence
from references.certificates import RECIPES
from references.error_bounds import lse_bounds, row_bounds
from references.golden import GoldenOutput

CERTIFYING = ("default", "certificate", "all")
COMPARING = ("metamorphic", "all")


class Runs(RunsVariants, Protocol):
    """What evidence needs of the one who runs the adapter (harness.running.examine.Examiner)."""

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


def gather_evidence(
    runs: Runs, options: RunOptions, poison: Poison, own: Callable[[], Sequence[Evidence]] | None = None
) -> Outcome:
    """Run the adapter as often as the evidence asked for needs, and judge each output.

    `own`: gives the evidence of the case's own data where that was gathered already, or raises what its adapter
    raised (harness/running/together.py).
    """
    atol = default_atol(runs.case.dtype) if options.atol is None else options.atol
    evidence = _own_data(runs, options, poison, atol) if own is None else own()
    certificates = _certificates(runs, options, poison) if options.evidence in CERTIFYING else []
    relations = metamorphic_evidence(runs, poison, options.repeats) if options.evidence in COMPARING else []
    return Outcome((*evidence, *certificates, *relations), evidence[0].measure.get("max_abs_diff"), atol)


def _own_data(runs: Runs, options: RunOptions, poison: Poison, atol: float) -> list[Evidence]:
    """The flat comparison first, then the row bound and the LSE, on the case's own data."""
    case, adapter = runs.case, runs.adapter
    with runs.watch.stage("draw"):
        data = make_data(case, runs.device)
    with runs.watch.stage("golden"):
        golden = golden_of(case, data)
        if data.sinks is not None and not adapter.lse_includes_sink:
            golden = dataclasses.replace(golden, lse=golden_of(case, data, sinks=False).lse)
    _, output = runs.run(data, poison)
    with runs.watch.stage("judge"):
        return judge_own(
            case,
            adapter,
            data,
            golden,
            output,
            options.evidence,
            atol,
            atol_decides=options.atol is not None,
        )


def judge_own(
    case: AttentionCase,
    adapter: Adapter,
    data: LogicalData,
    golden: GoldenOutput,
    output: AttentionOutput,
    evidence: str,
    atol: float,
    *,
    atol_decides: bool,
) -> list[Evidence]:
    """The evidence of one output on the case's own data; `golden.lse` is by the adapter's convention for sinks."""
    if evidence != "atol":
        maps = Maps.of(case, adapter, data, golden, [output])
        holding = None if maps is None else maps.holding(case, slice(None), atol, atol_decides=atol_decides)
        if holding is not None:
            return holding
    flat = compare_output(case, output.out, golden.out, atol)
    tolerance = lse_tolerance(golden.lse, lse_bounds(case, data, golden, row_sum_traits(adapter)))
    lse = compare_lse(case, output.lse, golden.lse, tolerance, adapter.lse_base, adapter.empty_row)
    if evidence == "atol":
        return [flat, lse]
    flat = dataclasses.replace(flat, decides=atol_decides or "not_finite" in flat.measure)
    bounds = row_bounds(case, data, golden, kernel_traits(adapter))
    return [flat, compare_bound(case, output.out, golden.out, bounds), lse]


def _certificates(runs: Runs, options: RunOptions, poison: Poison) -> list[Evidence]:
    traits = kernel_traits(runs.adapter)
    names, evidence = chosen_recipes(runs.case, traits, every=options.evidence in ("certificate", "all"))
    for name in names:
        with runs.watch.stage("draw"):
            built = RECIPES[name].build(runs.case, runs.device)
        batch, output = runs.run(built.data, poison)
        with runs.watch.stage("judge"):
            evidence.append(judge_certificate(name, batch, built, output, runs.adapter.lse_base, traits))
        data = built.data
    if not names:  # the batch of the case's own data may be gone (harness/running/together.py)
        with runs.watch.stage("draw"):
            data = make_data(runs.case, runs.device)
        batch, _ = runs.run(data, poison)
    with runs.watch.stage("judge"):
        evidence.append(compare_cache(batch, data, declared(runs.adapter, "pads_page_0")))
    return evidence
