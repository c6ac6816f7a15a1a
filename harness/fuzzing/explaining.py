"""Why a case failed, asked in the process that ran it: in full for a finding, against known faults for the rest."""

from __future__ import annotations

from collections.abc import Sequence

from cases.recipes import make_data
from harness.diagnosis.explaining import Explanation, explain
from harness.diagnosis.observing import find_truth, observe
from harness.diagnosis.suspects import Court, vehicles_for
from harness.faults.protocol import Fault, compose
from harness.faults.registry import load_fault
from harness.faults.shots import Range, prepare
from harness.record import Record
from harness.running.examine import AdapterFailure, DoesNotFit, Examiner

ATTRIBUTION_SECONDS = 20.0


def explain_record(examiner: Examiner, record: Record, range_: Range, seconds: float) -> Explanation:
    """`explain`, with what the adapter raises on the way told as an explanation."""
    try:
        prepare(examiner)
        return explain(examiner, record, seconds=seconds, range_=range_)
    except (AdapterFailure, DoesNotFit) as failure:
        return Explanation((f"not explained: {failure}",))


def which_known(examiner: Examiner, known: Sequence[Sequence[str]], range_: Range) -> int | None:
    """The first of `known` whose fault gives what this adapter gives on this case; None if none does.

    Each of `known` names faults that explain one earlier finding, likeliest first. All of them together are
    tried first: a case may well trip over several bugs at once.
    """
    try:
        prepare(examiner)
        level = examiner.case.poison.weaker(examiner.adapter.poison)
        truth = find_truth(examiner, level, make_data(examiner.case, examiner.device))
        observed = observe(examiner, truth.flat, level)
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
    first = [group[0] for group in groups]
    if len(first) > 1 and reproduces(compose(*first)):
        return 0
    return None
