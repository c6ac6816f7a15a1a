"""Running the relations on one case: a base run, the other runs, and one piece of evidence for each relation."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from cases.batch import AttentionBatch
from cases.recipes import LogicalData, make_data
from cases.schema import AttentionCase, Poison
from harness.adapters.protocol import Adapter, AttentionOutput, declared
from harness.figures import RELATION
from harness.judging.compare import check_shape, finite, natural_lse
from harness.judging.kept import golden_of
from harness.judging.tolerances import lse_tolerance
from harness.judging.traits import kernel_traits, row_sum_traits
from harness.judging.where import row_place, say_place
from harness.metamorphic.batch_order import BatchPermutation
from harness.metamorphic.chunks import ChunkedExtend
from harness.metamorphic.comparing import Allowed, Gap, gap_between
from harness.metamorphic.composition import BatchComposition
from harness.metamorphic.determinism import Determinism
from harness.metamorphic.pages import PagePermutation
from harness.metamorphic.relation import Relation, Subject, Variant
from harness.metamorphic.repoisoning import Repoisoning
from harness.verdict import Evidence
from references.error_bounds import lse_bounds, row_bounds
from references.golden import golden_attention

# The first says whether comparing bits means anything.
RELATIONS: tuple[Relation, ...] = (
    Determinism(),
    PagePermutation(),
    Repoisoning(),
    BatchPermutation(),
    BatchComposition(),
    ChunkedExtend(),
)
DETERMINISM = RELATION + RELATIONS[0].name


class Watch(Protocol):
    """Times what happens inside `stage(name)` (harness.running.examine.Stopwatch)."""

    def stage(self, name: str) -> AbstractContextManager[None]: ...


class RunsVariants(Protocol):
    """What relations need of the one who runs the adapter (harness.running.examine.Examiner)."""

    case: AttentionCase
    adapter: Adapter
    device: torch.device

    @property
    def watch(self) -> Watch: ...

    def unsupported(self, case: AttentionCase, label: str) -> str | None: ...

    def variant(
        self,
        case: AttentionCase,
        data: LogicalData,
        poison: Poison,
        label: str,
        change: Callable[[AttentionBatch], None] | None,
        times: int,
    ) -> Iterator[AttentionOutput]: ...


@dataclass
class _Bounds:
    """The row bounds of the original, worked out once and only if a relation needs them."""

    subject: Subject
    adapter: Adapter

    @functools.cached_property
    def own(self) -> Allowed:
        case, data = self.subject.case, self.subject.data
        golden = golden_of(case, data)
        without_sinks = data.sinks is not None and not self.adapter.lse_includes_sink
        lse = golden_of(case, data, sinks=False).lse if without_sinks else golden.lse
        tolerance = lse_tolerance(lse, lse_bounds(case, data, golden, row_sum_traits(self.adapter)))
        return Allowed(row_bounds(case, data, golden, kernel_traits(self.adapter)), tolerance)

    def allowed(self, variant: Variant) -> Allowed | None:
        """What the rows of `variant` may differ by: the bound of either run; None for nothing at all."""
        if variant.exact:
            return None
        out, lse = self.own.out[variant.rows], self.own.lse[variant.rows]
        if not variant.own_bound:
            return Allowed(2 * out, 2 * lse)
        golden = golden_attention(variant.case, variant.data, moments=True)
        own = row_bounds(variant.case, variant.data, golden, kernel_traits(self.adapter))
        return Allowed(out + own, 2 * lse)


def metamorphic_evidence(runs: RunsVariants, level: Poison, repeats: int) -> list[Evidence]:
    """One piece of evidence for each relation. Raises what `runs` raises."""
    case, adapter = runs.case, runs.adapter
    with runs.watch.stage("draw"):
        data = make_data(case, runs.device)
    subject = Subject(
        case,
        data,
        level,
        adapter.poison,
        declared(adapter, "deterministic"),
        declared(adapter, "batch_invariant"),
        declared(adapter, "page_invariant"),
        repeats,
    )
    first = next(runs.variant(case, data, level, "the first run", None, 1))
    if _misshapen(case, first) is not None:
        return _none_of(RELATIONS, "the output has another shape than it should")
    # A path may write every output to the same memory.
    first = AttentionOutput(first.out.clone(), None if first.lse is None else natural_lse(first.lse, adapter.lse_base))
    bounds = _Bounds(subject, adapter)
    evidence: list[Evidence] = []
    for relation in RELATIONS:
        evidence.append(_check(relation, subject, runs, first, bounds))
        if evidence[-1].kind == DETERMINISM and evidence[-1].passed is False:
            # No difference between two runs says anything about their inputs any more.
            return evidence + _none_of(RELATIONS[1:], "two runs on the same inputs differ")
    return evidence


def _none_of(relations: Sequence[Relation], reason: str) -> list[Evidence]:
    return [Evidence(RELATION + relation.name, None, message=reason) for relation in relations]


def _check(
    relation: Relation, subject: Subject, runs: RunsVariants, first: AttentionOutput, bounds: _Bounds
) -> Evidence:
    """Evidence of one relation: ends with the first variant that does not hold."""
    kind, reason = RELATION + relation.name, relation.not_run(subject)
    if reason is not None:
        return Evidence(kind, None, message=reason)
    measure: dict[str, Any] = {"runs": 0, "bitwise": True, "max_abs_diff": 0.0, "max_lse_diff": None, "ratio": None}
    outside = None
    for variant in relation.variants(subject):
        reason = runs.unsupported(variant.case, variant.label)
        if reason is not None:
            outside = f"with {variant.label} the case is outside what the adapter takes: {reason}"
            continue
        with runs.watch.stage("golden"):
            allowed = bounds.allowed(variant)
        data = variant.data
        for output in runs.variant(variant.case, data, variant.level, variant.label, variant.change, variant.times):
            wrong_shape = _misshapen(variant.case, output)
            if wrong_shape or (output.lse is None) != (first.lse is None):
                message = wrong_shape or "an LSE is given in one run and not in the other"
                return Evidence(kind, False, measure, f"with {variant.label}: {message}")
            lse = None if output.lse is None else natural_lse(output.lse, runs.adapter.lse_base)
            with runs.watch.stage("judge"):
                gap = gap_between(first, variant, dataclasses.replace(output, lse=lse), allowed)
            _note(measure, variant, gap)
            if not gap.holds:
                return _broken(kind, subject, variant, gap, measure)
    if not measure["runs"]:
        return Evidence(kind, None, message=outside or "there was nothing to run")
    return Evidence(kind, True, measure)


def _misshapen(case: AttentionCase, output: AttentionOutput) -> str | None:
    shape = (case.total_q, case.num_qo_heads, case.head_dim_vo)
    return check_shape("out", output.out, shape) or (
        None if output.lse is None else check_shape("lse", output.lse, shape[:2])
    )


def _note(measure: dict[str, Any], variant: Variant, gap: Gap) -> None:
    """Add one run to the figures of a relation."""
    measure["runs"] += 1
    measure["bitwise"] = measure["bitwise"] and variant.exact
    for name, now in (("max_abs_diff", gap.largest), ("max_lse_diff", gap.largest_lse), ("ratio", gap.ratio)):
        was = measure[name]
        if now is not None and not (was is not None and was >= now):
            measure[name] = finite(now)


def _broken(kind: str, subject: Subject, variant: Variant, gap: Gap, measure: dict[str, Any]) -> Evidence:
    row, head = divmod(gap.worst, subject.case.num_qo_heads)
    place = row_place(subject.case, int(variant.rows[row]), head)
    measure |= {"worst": place, "rows_over": gap.rows_over, "with": variant.label}
    what, largest = ("LSE", gap.largest_lse) if gap.in_lse else ("output", gap.largest)
    limit = "the bits should be the same" if variant.exact else f"{gap.ratio:.3g} times what rounding allows"
    message = (
        f"with {variant.label} the {what} differs by up to {largest:.3g} ({limit}), most at {say_place(place)}; "
        f"{gap.rows_over} of {variant.case.total_q} rows differ"
    )
    return Evidence(kind, False, measure, message)
