"""One fault on one case through one adapter, in this process: which evidence fires."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from cases.schema import AttentionCase, Poison
from harness.adapters.protocol import Adapter
from harness.adapters.registry import load_adapter, match
from harness.faults.catalogue.building import EmulatedHang
from harness.faults.protocol import Fault, FaultClass
from harness.faults.registry import plant
from harness.judging.gather import gather_evidence
from harness.running.examine import AdapterFailure, DoesNotFit, Examiner, Stopwatch, adapter_at_work
from harness.running.options import RunOptions
from harness.running.worker import pick_device

EMULATED = ("*@emulated",)
ATOL, LSE, BOUND, CERTIFICATE = "atol", "lse", "bound", "certificate"
POISON, CRASH, TIMEOUT = "poison", "crash", "timeout"
KINDS = (ATOL, LSE, BOUND, CERTIFICATE, POISON, CRASH, TIMEOUT)

# What a harness with that much evidence, and no more, would have seen. A crash needs no evidence.
LADDER: tuple[tuple[str, frozenset[str]], ...] = (
    ("flat atol alone", frozenset({ATOL, CRASH, TIMEOUT})),
    ("and LSE", frozenset({ATOL, CRASH, TIMEOUT, LSE})),
    ("and row bounds", frozenset({ATOL, CRASH, TIMEOUT, LSE, BOUND})),
    ("and certificates", frozenset({ATOL, CRASH, TIMEOUT, LSE, BOUND, CERTIFICATE})),
)


NO_FAULT = Fault("none", FaultClass.OTHER, "no fault at all", on_plan=lambda plan, _batch: plan, is_control=True)


@dataclass(frozen=True, slots=True)
class Shot:
    """What fired; empty if nothing did."""

    case: AttentionCase
    adapter: str
    fired: frozenset[str]


def emulated_adapters() -> tuple[str, ...]:
    """Those that can run here."""
    return tuple(entry.name for entry in match(EMULATED) if entry.why_not is None)


class Range:
    """Plants faults and shoots. Adapters without hooks are kept between shots, as a worker keeps them."""

    def __init__(self, options: RunOptions | None = None) -> None:
        self.options = RunOptions() if options is None else options
        self._adapters: dict[str, Adapter] = {}
        self._without_fault: dict[tuple[str, str], frozenset[str]] = {}

    def adapter(self, name: str) -> Adapter:
        """The adapter as it is, without a fault."""
        if name not in self._adapters:
            self._adapters[name] = load_adapter(name)
        return self._adapters[name]

    def planted(self, name: str, fault: Fault) -> tuple[Adapter, Callable[..., Any] | None]:
        """A fresh adapter if the fault acts in its kernels."""
        if fault.on_kernel is None or (fault.on_plan is not None and not name.endswith("@emulated")):
            return self.adapter(name), fault.on_plan
        return plant(name, fault)

    def examiner(self, case: AttentionCase, name: str, fault: Fault) -> Examiner:
        adapter, change = self.planted(name, fault)
        device = pick_device(adapter)
        return Examiner(case, adapter, device, Stopwatch(device, lambda _stage: None), change)

    def shoot(self, case: AttentionCase, name: str, fault: Fault, *, tell_poison: bool = False) -> Shot | None:
        """None where the fault does not fit the case's plan.

        Evidence that fires on the same kernel without the fault too (a known finding) is not counted.
        `tell_poison` runs a case that fails once more with its unused slots zeroed.
        """
        shot = self._shoot(case, name, fault, tell_poison)
        if shot is None or not shot.fired or shot.fired & {CRASH, TIMEOUT}:
            return shot
        return Shot(case, name, shot.fired - self.without_fault(case, name))

    def without_fault(self, case: AttentionCase, name: str) -> frozenset[str]:
        """What fires on an adapter as it is."""
        if (case.id, name) not in self._without_fault:
            shot = self._shoot(case, name, NO_FAULT, False)
            self._without_fault[case.id, name] = frozenset() if shot is None else shot.fired
        return self._without_fault[case.id, name]

    def _shoot(self, case: AttentionCase, name: str, fault: Fault, tell_poison: bool) -> Shot | None:
        examiner = self.examiner(case, name, fault)
        level = case.poison.weaker(examiner.adapter.poison)
        try:
            prepare(examiner)
            fired = self._fired(examiner, level)
            if fired and tell_poison and level is not Poison.ZERO and not self._fired(examiner, Poison.ZERO):
                fired |= {POISON}
        except DoesNotFit:
            return None
        except AdapterFailure as failure:
            fired = {TIMEOUT if isinstance(failure.__cause__, EmulatedHang) else CRASH}
        return Shot(case, name, frozenset(fired))

    def _fired(self, examiner: Examiner, level: Poison) -> set[str]:
        outcome = gather_evidence(examiner, self.options, level)
        return {e.kind.partition("/")[0] for e in outcome.evidence if e.passed is False}

    def supports(self, case: AttentionCase, name: str) -> bool:
        return self.adapter(name).capabilities.unsupported(case) is None


def prepare(examiner: Examiner) -> None:
    """What the runner does before the first run of a case. Raises AdapterFailure."""
    if hasattr(examiner.adapter, "prepare"):
        with adapter_at_work("prepare"):
            examiner.adapter.prepare(examiner.case)


def cost(case: AttentionCase) -> int:
    """Scores that a run computes: what makes a case slow on a CPU."""
    return sum(r.extend_len * r.kv_len for r in case.requests) * case.num_qo_heads * case.head_dim_qk


def targets(
    range_: Range, fault: Fault, cases: Iterable[AttentionCase], adapters: Sequence[str]
) -> list[tuple[AttentionCase, tuple[str, ...]]]:
    """Cases that are not blind to the fault, cheapest first, each with the adapters that take it."""
    fitting = [name for name in adapters if fault.fits(name)]
    found = []
    for case in sorted(cases, key=cost):
        if fault.blind(case) is not None:
            continue
        taking = tuple(name for name in fitting if range_.supports(case, name))
        if taking:
            found.append((case, taking))
    return found
