"""Why a case failed, asked in the process that ran it: in full for a finding, against known faults for the rest."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from cases.recipes import make_data
from harness.diagnosis.explaining import Explanation, confirm, explain
from harness.diagnosis.observing import find_truth, observe
from harness.diagnosis.suspects import Court, vehicles_for
from harness.faults.protocol import Fault, compose
from harness.faults.registry import load_fault
from harness.faults.shots import Range, cost, prepare
from harness.record import Record
from harness.running.examine import AdapterFailure, DoesNotFit, Examiner

ATTRIBUTION_SECONDS = 60.0
LARGE = 1 << 28  # an original that costs more than this is not run again to confirm an explanation


def explain_record(examiner: Examiner, record: Record, original: Record, range_: Range, seconds: float) -> Explanation:
    """`explain`, confirmed on the case that first failed; what the adapter raises on the way is an explanation too."""
    try:
        prepare(examiner)
        told = explain(examiner, record, seconds=seconds, range_=range_)
        if original.case == record.case or told.fault is None or cost(original.case) > LARGE:
            return told
        larger = dataclasses.replace(examiner, case=original.case)
        return confirm(_told_apart(told, larger, original, range_), larger, range_=range_)
    except (AdapterFailure, DoesNotFit) as failure:
        return Explanation((f"not explained: {failure}",))


def _told_apart(told: Explanation, larger: Examiner, original: Record, range_: Range) -> Explanation:
    """A small case is the same under several faults; the case that it was shrunk from tells more of them apart."""
    assert told.fault is not None
    candidates = [told.fault, *told.equals]
    at = which_known(larger, original, [[name] for name in candidates], range_, together=False)
    if not at:
        return told
    fault = load_fault(candidates[at])
    first = f"{fault.name}: {fault.summary} (reproduced on both cases; {told.fault} is the same on the shrunk one)"
    rest = tuple(name for name in candidates if name != fault.name)
    return dataclasses.replace(
        told,
        lines=(first, *(line for line in told.lines[1:] if not line.startswith("the same on this case"))),
        fault=fault.name,
        fault_class=str(fault.fault_class),
        equals=rest,
    )


def which_known(
    examiner: Examiner, record: Record, known: Sequence[Sequence[str]], range_: Range, *, together: bool = True
) -> int | None:
    """The first of `known` whose fault gives what this adapter gives on this case; None if none does.

    Each of `known` names faults that explain one earlier finding, likeliest first. If no finding alone does, all of
    them `together` are tried: a case may well trip over several bugs at once.
    """
    failed = (e.kind.removeprefix("certificate/") for e in record.evidence if e.passed is False and "/" in e.kind)
    try:
        prepare(examiner)
        level = examiner.case.poison.weaker(examiner.adapter.poison)
        truth = find_truth(examiner, level, make_data(examiner.case, examiner.device), ("flat", *failed))
        observed = observe(examiner, truth.recipes, level)
    except (AdapterFailure, DoesNotFit):
        return None
    vehicles = vehicles_for(examiner.case, examiner.adapter, range_)[:1]
    court = Court(truth, observed, vehicles, range_, seconds=ATTRIBUTION_SECONDS, device=examiner.device)
    groups = [[load_fault(name) for name in names] for names in known]

    def reproduces(fault: Fault) -> bool:
        return any(fault.fits(name) and court.explains(court.try_one(fault, name).residual) for name in vehicles)

    for at, group in enumerate(groups):
        if any(reproduces(fault) for fault in group):
            return at
    likeliest = [group[0] for group in groups]
    if together and len(likeliest) > 1 and reproduces(compose(*likeliest)):
        return 0
    return None
