"""Why a case failed, asked in the process that ran it: in full for a finding, against known faults for the rest.

An adapter may have several bugs, and a generated case trips over several at once. So what is known is tried in
combinations, and what is new is looked for beside what is known.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

import torch

from cases.recipes import make_data
from cases.schema import AttentionCase
from harness.diagnosis.explaining import Explanation, acts_as, confirm, explain
from harness.diagnosis.observing import find_truth, observe
from harness.diagnosis.suspects import CLEARLY_BETTER, EXPLAINED, Court, Effect, vehicles_for
from harness.faults.catalogue import CATALOGUE
from harness.faults.protocol import Fault, compose
from harness.faults.registry import load_fault
from harness.faults.shots import NO_FAULT, Range, cost, prepare
from harness.record import Record
from harness.running.examine import AdapterFailure, DoesNotFit, Examiner

SECONDS = 120.0  # for one question about known faults; reached only where something hangs
LARGE = 1 << 28  # a case that costs more than this is not run again to tell explanations apart
COMBINATIONS = 48

Groups = Sequence[Sequence[str]]  # for each known finding the faults that explain it, likeliest first
Culprits = list[tuple[int, str]]  # (which known finding, which of its faults)


class Inquest:
    """One failing case, and whether given faults together reproduce what the adapter gives on it."""

    def __init__(self, examiner: Examiner, record: Record, range_: Range) -> None:
        """Raises AdapterFailure or DoesNotFit if the adapter cannot be run at all."""
        prepare(examiner)
        case = examiner.case
        failed = (e.kind.removeprefix("certificate/") for e in record.evidence if e.passed is False and "/" in e.kind)
        level = case.poison.weaker(examiner.adapter.poison)
        truth = find_truth(examiner, level, make_data(case, examiner.device), ("flat", *failed))
        observed = observe(examiner, truth.recipes, level)
        vehicles = vehicles_for(case, examiner.adapter, range_)[:1]
        self.case, self.vehicle = case, vehicles[0] if vehicles else None
        self.court = Court(truth, observed, vehicles, range_, seconds=SECONDS, device=examiner.device)
        self._without: Effect | None = None

    def holds(self, faults: Sequence[Fault]) -> bool:
        """True if these faults, all at once, give what was seen.

        Less is asked than of an explanation: a failure so slight that a right kernel explains it as well (a cap
        far above every logit, seen by an LSE alone) still belongs to the known fault that gives it much more nearly.
        """
        fault = faults[0] if len(faults) == 1 else compose(*faults)
        if self.vehicle is None or not fault.fits(self.vehicle) or not self.court.in_time:
            return False
        residual = self.court.try_one(fault, self.vehicle).residual
        return residual <= min(EXPLAINED, CLEARLY_BETTER * self.court.without_fault)

    def acts(self, fault: Fault) -> bool:
        """True if this fault alone changes anything on this case; beside others one that does not still may."""
        if self.vehicle is None or not fault.fits(self.vehicle) or fault.blind(self.case) is not None:
            return False
        if self._without is None:
            self._without = self.court.try_one(NO_FAULT, self.vehicle)
        there, clean = self.court.try_one(fault, self.vehicle).rows, self._without.rows
        return there is None or clean is None or not torch.equal(there, clean)


def which_known(examiner: Examiner, record: Record, known: Groups, range_: Range) -> Culprits | None:
    """The known findings that this failure consists of, or None if it has anything to it that is new."""
    try:
        inquest = Inquest(examiner, record, range_)
    except (AdapterFailure, DoesNotFit):
        return None
    return _combination(inquest, known)


def _combination(inquest: Inquest, known: Groups) -> Culprits | None:
    groups = [[(at, load_fault(name)) for name in group] for at, group in enumerate(known)]
    for chosen in itertools.chain(
        ((one,) for group in groups for one in group),
        itertools.islice(_several([group[:1] for group in groups]), COMBINATIONS),
        itertools.islice(_several([[one for one in group if inquest.acts(one[1])] for group in groups]), COMBINATIONS),
    ):
        if inquest.holds([fault for _, fault in chosen]):
            return [(at, fault.name) for at, fault in chosen]
    return None


def _several(groups: list[list[tuple[int, Fault]]]) -> Iterator[tuple[tuple[int, Fault], ...]]:
    """One fault of each of two groups or more, the most groups first."""
    some = [group for group in groups if group]
    for count in range(len(some), 1, -1):
        for chosen in itertools.combinations(some, count):
            yield from itertools.product(*chosen)


# -- a finding -----------------------------------------------------------------------------------
def explain_record(
    examiner: Examiner, record: Record, witnesses: Sequence[Record], known: Groups, range_: Range, seconds: float
) -> Explanation:
    """`explain`, told apart by `witnesses`: larger cases that failed before this one, the original last.

    What the adapter raises on the way is told as an explanation too.
    """
    try:
        prepare(examiner)
        told = explain(examiner, record, seconds=seconds, range_=range_)
        if told.fault is None and known:
            told = _beside_known(told, examiner, record, known, range_)
        if told.fault is None:
            return told
        larger = [w for w in witnesses if w.case != record.case and cost(w.case) <= LARGE]
        told = _told_apart(told, examiner, larger, known, range_)
        if larger and not known:
            told = confirm(told, _on(examiner, larger[-1].case), range_=range_)
    except (AdapterFailure, DoesNotFit) as failure:
        return Explanation((f"not explained: {failure}",))
    return told


def _on(examiner: Examiner, case: AttentionCase) -> Examiner:
    return dataclasses.replace(examiner, case=case)


def _beside_known(told: Explanation, examiner: Examiner, record: Record, known: Groups, range_: Range) -> Explanation:
    """A named fault that, together with known ones, gives what none gives alone, and alone does only what was seen."""
    inquest = Inquest(examiner, record, range_)
    named = {name for group in known for name in group}
    likeliest = [load_fault(group[0]) for group in known]
    acts_as_seen = acts_as(told.attended, inquest.court)
    for fault in CATALOGUE:
        if fault.name in named or not inquest.holds([*likeliest, fault]):
            continue
        assert inquest.vehicle is not None
        if acts_as_seen(fault, inquest.vehicle):
            beside = ", ".join(other.name for other in likeliest)
            first = f"{fault.name}: {fault.summary} (reproduced together with what is known: {beside})"
            return dataclasses.replace(
                told, lines=(first, *told.lines[1:]), fault=fault.name, fault_class=str(fault.fault_class)
            )
    return told


def _told_apart(
    told: Explanation, examiner: Examiner, witnesses: Sequence[Record], known: Groups, range_: Range
) -> Explanation:
    """A small case is the same under several faults; larger ones that failed on the way to it are not."""
    assert told.fault is not None
    candidates = [load_fault(name) for name in (told.fault, *told.equals)]
    if len(candidates) == 1:
        return told
    likeliest = [load_fault(group[0]) for group in known]
    held = dict.fromkeys((fault.name for fault in candidates), 0)
    for witness in witnesses:
        try:
            inquest = Inquest(_on(examiner, witness.case), witness, range_)
        except (AdapterFailure, DoesNotFit):
            continue
        for fault in candidates:
            held[fault.name] += inquest.holds([fault]) or bool(known and inquest.holds([*likeliest, fault]))
    candidates.sort(key=lambda fault: -held[fault.name])  # stable: among equals, as they were
    best, rest = candidates[0], candidates[1:]
    if not held[best.name]:
        return told
    told = dataclasses.replace(
        told, fault=best.name, fault_class=str(best.fault_class), equals=tuple(fault.name for fault in rest)
    )
    others = [line for line in told.lines[1:] if not line.startswith("the same on this case")]
    same = [fault.name for fault in rest if held[fault.name] == held[best.name]]
    first = f"{best.name}: {best.summary} (reproduced here and on {held[best.name]} larger cases of {len(witnesses)})"
    also = [f"the same on these cases: {', '.join(same[:4])}{' ...' if len(same) > 4 else ''}"] if same else []
    return dataclasses.replace(told, lines=(first, *also, *others))
