"""What could make a kernel give this output: every named fault, run on an emulation of the same path.

A suspect is planted in an emulated adapter that is planned like the one under suspicion, run on the
same data, and compared. It explains the output if it reproduces it, on the case's own data and on that of certificates,
within what two right kernels may differ by, and much better than a kernel without fault does.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cases.schema import AttentionCase
from harness.adapters.protocol import Adapter, LseBase, declared
from harness.diagnosis.observing import Observed, Seen, Truth, certificate_slack, difference, observe
from harness.errors import UsageError
from harness.faults.catalogue import CATALOGUE
from harness.faults.protocol import Fault, compose
from harness.faults.shots import NO_FAULT, Range, emulated_adapters, prepare
from harness.running.examine import AdapterFailure, DoesNotFit

EXPLAINED = 1.0  # largest distance, in units of what two right kernels may differ by
CLEARLY_BETTER = 0.25  # of the distance of a kernel without fault


@dataclass(frozen=True, slots=True)
class Suspect:
    """A fault that reproduces the output, and how closely: `residual` of 1 is as far as right kernels differ."""

    fault: Fault
    residual: float
    vehicle: str


@dataclass(frozen=True, slots=True)
class Effect:
    """What a fault did on a vehicle: the distance to the output to be explained, by row on own data."""

    fault: Fault
    vehicle: str
    residual: float
    rows: Tensor | None


def vehicles_for(case: AttentionCase, adapter: Adapter, range_: Range) -> tuple[str, ...]:
    """Emulated adapters to plant suspects in, likeliest first.

    The emulation of the same name if there is one; else those that merge as many legs and give LSE in the
    same base, then the others.
    """
    names = [name for name in emulated_adapters() if range_.supports(case, name)]
    base = adapter.name.removesuffix("@emulated")
    same = [name for name in names if name == f"{base}@emulated"]
    if same:
        return tuple(same)
    legs, log2 = declared(adapter, "merge_legs"), adapter.lse_base is LseBase.LOG2

    def unlike(name: str) -> tuple[bool, bool, bool]:
        other = range_.adapter(name)
        same_sinks = other.lse_includes_sink == adapter.lse_includes_sink
        return (declared(other, "merge_legs") != legs, (other.lse_base is LseBase.LOG2) != log2, not same_sinks)

    return tuple(sorted(names, key=unlike))[:3]


class Court:
    """Tries suspects against one observation, within a time limit."""

    def __init__(
        self,
        truth: Truth,
        observed: Observed,
        vehicles: Sequence[str],
        range_: Range,
        *,
        seconds: float,
        device: torch.device,
    ) -> None:
        self.truth, self.observed, self.vehicles, self.range = truth, observed, vehicles, range_
        self.device = device
        self.untried = 0  # faults that could show here and that there was no time for
        self._until = time.monotonic() + seconds
        self.without_fault = min((self.try_one(NO_FAULT, name).residual for name in vehicles), default=torch.inf)

    @property
    def in_time(self) -> bool:
        return time.monotonic() < self._until

    def try_one(self, fault: Fault, vehicle: str) -> Effect:
        """Plant, run, compare. A fault that does not fit is infinitely far away."""
        nothing = Effect(fault, vehicle, torch.inf, None)
        try:
            examiner = self.range.examiner(self.truth.case, vehicle, fault)
        except UsageError:
            return nothing
        examiner.device = self.device
        try:
            prepare(examiner)
            repeats = 1 if self.observed.repeats else len(self.observed.own)
            other = observe(examiner, {}, self.truth.level, repeats)
            if other.failure is not None or not self.observed.own:
                return Effect(fault, vehicle, self._of_failures(other), None)
            rows = self._own_rows(other)
            if self.observed.zeroed is not None:
                rows = torch.maximum(rows, self._zeroed_rows(other))
            worst = float(rows.max())
            if worst > EXPLAINED:
                return Effect(fault, vehicle, worst, rows)
            certified = observe(examiner, self.truth.recipes, self.truth.level, 0)
        except DoesNotFit:
            return nothing
        except AdapterFailure as failure:
            return Effect(fault, vehicle, self._of_failures(Observed(failure=str(failure))), None)
        if certified.failure is not None:
            return nothing
        return Effect(fault, vehicle, max(worst, self._certified_distance(certified)), rows)

    def _of_failures(self, other: Observed) -> float:
        """0 if both fail with the same words, else infinitely far."""
        return 0.0 if other.failure is not None and other.failure == self.observed.failure else torch.inf

    def _own_rows(self, other: Observed) -> Tensor:
        """Distance by row. If the output changes from run to run: the distance between the sets of outputs."""
        case, bound = self.truth.case, self.truth.bound

        def nearest(one: Seen, among: Sequence[Seen]) -> Tensor:
            return min((difference(one, o, bound, case.dtype) for o in among), key=lambda rows: float(rows.max()))

        there = [nearest(one, other.own) for one in self.observed.own[: 1 if self.observed.repeats else None]]
        back = [] if self.observed.repeats else [nearest(one, self.observed.own) for one in other.own]
        return torch.stack([*there, *back]).amax(0)

    def _zeroed_rows(self, other: Observed) -> Tensor:
        assert self.observed.zeroed is not None
        if other.zeroed is None:  # it gave no NaN where the kernel under suspicion did
            return torch.full_like(self.truth.golden.lse, torch.inf)
        return difference(self.observed.zeroed, other.zeroed, self.truth.bound, self.truth.case.dtype)

    def _certified_distance(self, other: Observed) -> float:
        truth = self.truth
        distances = [
            difference(
                mine, other.certified[name], certificate_slack(truth.recipes[name], truth.traits), truth.case.dtype
            )
            for name, mine in self.observed.certified.items()
        ]
        return max((float(rows.max()) for rows in distances), default=0.0)

    def explains(self, residual: float) -> bool:
        return not self.nothing_to_tell and residual <= min(EXPLAINED, CLEARLY_BETTER * self.without_fault)

    @property
    def nothing_to_tell(self) -> bool:
        """True if an emulated kernel without fault gives the same output: no fault can be told from none."""
        return self.without_fault <= EXPLAINED

    def single_faults(self, faults: Sequence[Fault] = CATALOGUE) -> tuple[list[Suspect], list[Effect]]:
        """Faults that explain the output, best first, and the effects of all that were tried."""
        effects = []
        for fault in faults:
            if fault.blind(self.truth.case) is not None:
                continue
            if not self.in_time:
                self.untried += any(fault.fits(vehicle) for vehicle in self.vehicles)
                continue
            for vehicle in self.vehicles:
                if fault.fits(vehicle):
                    effects.append(self.try_one(fault, vehicle))
        return self._best(effects), effects

    def pairs(self, effects: Sequence[Effect], acts_as_seen: Callable[[Fault, str], bool]) -> list[Suspect]:
        """Pairs of faults of one class that explain the output together, if no single one does.

        Those that explain most rows alone are tried first; a fault that changes nothing here is not.
        `acts_as_seen(fault, vehicle)`: whether it does by itself nothing that was not seen. Two faults that undo a part
        of each other can give any output, and neither is what happened.
        """
        honest = {name: self.try_one(NO_FAULT, name).rows for name in self.vehicles}
        members: dict[tuple[str, str], list[tuple[float, Fault]]] = {}
        for effect in effects:
            clean = honest[effect.vehicle]
            if effect.rows is None or clean is None or torch.equal(effect.rows, clean):
                continue
            gained = float(((effect.rows <= EXPLAINED) & (clean > EXPLAINED)).double().mean())
            members.setdefault((str(effect.fault.fault_class), effect.vehicle), []).append((gained, effect.fault))
        tries = [
            (first[0] + second[0], vehicle, (first[1], second[1]))
            for (_, vehicle), of_class in members.items()
            for first, second in itertools.combinations(of_class, 2)
        ]
        for _, vehicle, both in sorted(tries, key=lambda one: -one[0]):
            if not self.in_time:
                break
            effect = self.try_one(compose(*both), vehicle)
            if self.explains(effect.residual) and all(acts_as_seen(fault, vehicle) for fault in both):
                return self._best([effect])
        return []

    def _best(self, effects: Sequence[Effect]) -> list[Suspect]:
        explaining = [e for e in effects if self.explains(e.residual)]
        explaining.sort(key=lambda e: round(e.residual, 3))  # stable: the catalogue's order among equals
        seen: set[str] = set()
        return [
            Suspect(e.fault, e.residual, e.vehicle)
            for e in explaining
            if not (e.fault.name in seen or seen.add(e.fault.name))  # type: ignore[func-returns-value]
        ]
