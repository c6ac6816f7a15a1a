"""Explaining a result that is not right, from outputs alone.

    explanation = explain(examiner, level=Poison.FINITE)
    print("\\n".join(explanation.lines))

The order of the lines is that of use: what it does wrong, where, what else would look the same here, what
each query really saw. Nothing is claimed that a run did not reproduce.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from cases.recipes import LogicalData, make_data
from harness.diagnosis.observing import Observed, Truth, find_truth, observe, wrong_rows
from harness.diagnosis.suspects import Court, Suspect, vehicles_for
from harness.diagnosis.weights import say_weights
from harness.diagnosis.where import say_where
from harness.diagnosis.xray import LEVEL, MAX_RUNS, Attended, attended_matrix, runs_needed
from harness.diagnosis.xray_words import guess_class, kinds, row_differences, say_differences
from harness.faults.protocol import Fault
from harness.faults.registry import load_fault
from harness.faults.shots import Range, prepare
from harness.figures import RELATION
from harness.judging.cache import KIND as CACHE
from harness.record import Record
from harness.running.examine import AdapterFailure, DoesNotFit, Examiner
from harness.verdict import Verdict
from references.certificates import RECIPES

MAX_LINES = 12
SAME = "the same on this case: "
SMALL = 1 << 22  # scores (rows * keys * heads) up to which suspects are run on the whole case


@dataclass(frozen=True, slots=True)
class Explanation:
    """lines: at most 12, most useful first; fault: the named fault (a+b for two), or None
    residual: distance of what the fault gives from what was seen, 1 being what right kernels differ by
    equals: faults that give the same output on this case; attended: the X-ray, where one was taken"""

    lines: tuple[str, ...]
    fault: str | None = None
    fault_class: str | None = None
    residual: float | None = None
    equals: tuple[str, ...] = ()
    attended: Attended | None = None


def explain(examiner: Examiner, record: Record, *, seconds: float = 30.0, range_: Range | None = None) -> Explanation:
    """Why `record` is not a PASS. `examiner` runs the same adapter on the same case, in this process.

    Works on what the adapter gives back; names a fault only if an emulation of it gives the same.
    """
    if record.verdict in (Verdict.PASS, Verdict.UNSUPPORTED, Verdict.ERROR):
        return Explanation((f"nothing to explain: the verdict is {record.verdict}.",))
    until = time.monotonic() + seconds
    case = examiner.case
    work = sum(r.extend_len * r.kv_len for r in case.requests) * case.num_qo_heads
    if work > SMALL:
        return Explanation((f"{case.name} is too large to explain ({work:.1e} scores); shrink it first.",))
    range_ = Range() if range_ is None else range_
    level = case.poison.weaker(examiner.adapter.poison)
    data = make_data(case, examiner.device)
    truth = find_truth(examiner, level, data, ("flat", *_failed_recipes(record)))
    observed = observe(examiner, truth.recipes, level)
    vehicles = vehicles_for(case, examiner.adapter, range_)
    court = Court(truth, observed, vehicles, range_, seconds=0.5 * seconds, device=examiner.device)
    if court.nothing_to_tell:
        return Explanation(_like_no_fault(record, truth, observed, wrong_rows(truth, observed, examiner)))
    suspects, effects = court.single_faults()
    if observed.failure is not None:
        return _explain_failure(observed, suspects)
    wrong = wrong_rows(truth, observed, examiner)
    attended = xray(examiner) if time.monotonic() < until else None
    if not suspects:
        suspects = court.pairs(effects, acts_as(attended, court))
    told = _told(record, truth, data, observed, wrong, suspects, attended)
    if not court.untried:
        return told
    line = f"not tried for want of time: {court.untried} faults of the catalogue; --seconds gives more"
    return dataclasses.replace(told, lines=(*told.lines[: MAX_LINES - 1], line))


def _failed_recipes(record: Record) -> list[str]:
    """Certificates that failed, FLAT apart."""
    failed = (e.kind.removeprefix("certificate/") for e in record.evidence if e.passed is False and "/" in e.kind)
    return [name for name in failed if name in RECIPES and name != "flat"]


def confirm(explanation: Explanation, original: Examiner, *, range_: Range | None = None) -> Explanation:
    """An explanation found on a shrunk case, tried on the case it was shrunk from: a line more says how that went."""
    if explanation.fault is None:
        return explanation
    range_ = Range() if range_ is None else range_
    case = original.case
    level = case.poison.weaker(original.adapter.poison)
    truth = find_truth(original, level, make_data(case, original.device))
    observed = observe(original, truth.recipes, level)
    vehicles = vehicles_for(case, original.adapter, range_)
    court = Court(truth, observed, vehicles, range_, seconds=math.inf, device=original.device)
    fault = load_fault(explanation.fault)
    residual = min((court.try_one(fault, name).residual for name in vehicles), default=math.inf)
    if court.explains(residual):
        line = f"confirmed on the original case {case.name} (residual {residual:.2f} of the bound)"
    else:
        line = f"NOT the whole story: on the original case {case.name} it leaves {residual:.3g} times the bound"
    lines = (explanation.lines[0], line, *explanation.lines[1:])[:MAX_LINES]
    return dataclasses.replace(explanation, lines=lines)


def acts_as(attended: Attended | None, court: Court) -> Callable[[Fault, str], bool]:
    """Whether a fault alone does only what an X-ray saw, by kind: no extra keys if none were seen. True without one."""
    seen = None if attended is None else kinds(row_differences(attended))

    @functools.cache
    def acts(name: str, vehicle: str) -> bool:
        if seen is None:
            return True
        examiner = court.range.examiner(court.truth.case, vehicle, load_fault(name))
        examiner.device = court.device
        prepare(examiner)
        alone = xray(examiner)
        return alone is not None and kinds(row_differences(alone)) <= seen

    return lambda fault, vehicle: acts(fault.name, vehicle)


def _told(
    record: Record,
    truth: Truth,
    data: LogicalData,
    observed: Observed,
    wrong: Tensor,
    suspects: list[Suspect],
    attended: Attended | None,
) -> Explanation:
    case = truth.case
    differences = [] if attended is None else row_differences(attended)
    keys = say_differences(case, differences)
    where = [f"wrong: {line}" for line in say_where(case, wrong)]
    changing = [] if observed.repeats else ["two runs on the same data differ: a race, or state kept between calls"]
    if suspects:
        best = suspects[0]
        same = [s.fault.name for s in suspects[1:] if s.residual <= best.residual + 0.05]
        lines = [_name(best)]
        if same:
            lines.append(f"{SAME}{', '.join(same)}")
        lines += [*changing, *where, *(f"X-ray: {line}" for line in keys)]
        return Explanation(
            tuple(lines[:MAX_LINES]),
            best.fault.name,
            str(best.fault.fault_class),
            best.residual,
            tuple(same),
            attended,
        )
    said = keys or say_weights(truth, data, observed.own[0]) or _of_certificates(record)
    kind = guess_class(differences)
    first = f"no named fault explains this: {said[0]}" if said else "no named fault explains this"
    lines = [first + (f" ({kind})" if kind else ""), *changing, *where, *(f"X-ray: {line}" for line in said[1:])]
    if not keys:
        lines.append("X-ray: every query attends to the right keys" if attended is not None else "no X-ray was taken")
    return Explanation(tuple(lines[:MAX_LINES]), None, kind or None, attended=attended)


def _of_certificates(record: Record) -> list[str]:
    """What a certificate or a metamorphic check said, where nothing else is wrong."""
    return [f"only {e.kind} fails: {e.message}" for e in record.evidence if e.passed is False and "/" in e.kind]


def _name(suspect: Suspect) -> str:
    fault = suspect.fault
    reports = f"; {', '.join(fault.reports[:2])}" if fault.reports else ""
    found = f"class {fault.fault_class}; reproduced, residual {suspect.residual:.2f} of the bound{reports}"
    return f"{fault.name}: {fault.summary} ({found})"


def _explain_failure(observed: Observed, suspects: list[Suspect]) -> Explanation:
    """A run that raised: a named fault if one fails with the same words on this case."""
    ran = f"after {len(observed.own)} runs that ended" if observed.own else "at the first run"
    if not suspects:
        return Explanation((f"{observed.failure}", f"it raised {ran}; no named fault fails like this on this case."))
    best = suspects[0]
    same = tuple(s.fault.name for s in suspects[1:])
    lines = [f"{best.fault.name}: {best.fault.summary} (fails with the same words)", str(observed.failure)]
    if same:
        lines.append(f"{SAME}{', '.join(same)}")
    return Explanation(tuple(lines), best.fault.name, str(best.fault.fault_class), 0.0, same)


def _like_no_fault(record: Record, truth: Truth, observed: Observed, wrong: Tensor) -> tuple[str, ...]:
    """The emulation of this path gives the same without any fault: a property of the path, or too small to see."""
    failed = [e for e in record.evidence if e.passed is False]
    if bool(wrong.any()):
        lines = [
            "no fault: the emulation of this path gives the same without any, so this is how the library computes, "
            "or an error too close to the bound to tell faults apart",
            *(f"what failed: {e.message}" for e in failed[:3]),
            *(f"wrong: {line}" for line in say_where(truth.case, wrong)),
        ]
        return tuple(lines[:MAX_LINES])
    related = [f"{e.kind}: {e.message}" for e in failed if e.kind.startswith(RELATION)]
    if related:
        first = "every row is within its bound, but what should give the same answer does not:"
        return (first, *related)[:MAX_LINES]
    overwritten = [e.message for e in failed if e.kind == CACHE]
    if overwritten:
        return (f"every row is within its bound, but the path overwrites the kv cache: {overwritten[0]}",)
    gone = [e.message for e in failed if e.kind in ("bound", "lse")]
    if gone:
        return (
            "right when run again to be explained: the failure comes and goes, or needs what ran before in its process",
            f"what failed: {gone[0]}",
        )
    error = max(float(((one.out - truth.golden.out).abs() / (truth.bound + 1e-30)).max()) for one in observed.own)
    return (
        f"nothing to explain here: every row is within its bound (largest error {error:.2f} of it) and LSE agrees.",
        "an emulated kernel without fault gives the same; a fault of that size cannot be told from rounding "
        "on this case.",
    )


def xray(examiner: Examiner) -> Attended | None:
    """X-ray of the adapter, or None where that takes too many runs or a run raises."""
    if runs_needed(examiner.case) > MAX_RUNS:
        return None
    try:
        return attended_matrix(examiner.case, lambda data: examiner.run(data, LEVEL)[1].out, examiner.device)
    except (AdapterFailure, DoesNotFit):
        return None
