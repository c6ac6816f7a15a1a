"""How often the diagnosis names the fault that was planted, from outputs alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from cases.schema import AttentionCase
from harness.diagnosis.explaining import explain
from harness.faults.parallel import map_faults
from harness.faults.protocol import Fault
from harness.faults.registry import load_fault
from harness.faults.shots import CRASH, TIMEOUT, Range, targets
from harness.record import Record
from harness.verdict import Verdict

CASES = 2  # of the suite per fault, beside the fault's smallest
SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Blame:
    """One fault planted on one case, and what the diagnosis said.

    named:   the first explanation is the fault itself
    equal:   it is another that gives the same output on this case
    classed: the first explanation has its class, or is equal
    """

    fault: str
    fault_class: str
    case: str
    adapter: str
    said: str | None
    said_class: str | None
    named: bool
    equal: bool
    classed: bool

    @property
    def right(self) -> bool:
        return self.named or self.equal


def _chosen(
    range_: Range, fault: Fault, cases: Sequence[AttentionCase], adapters: Sequence[str]
) -> list[tuple[AttentionCase, tuple[str, ...]]]:
    """The fault's smallest case, and some of the suite's cheaper half."""
    smallest = [] if fault.smallest is None else targets(range_, fault, [fault.smallest], adapters)
    found = targets(range_, fault, cases, adapters)
    cheap = found[: max(CASES, len(found) // 2)]
    step = max(1, len(cheap) // CASES)
    return [*smallest, *cheap[step // 2 :: step][:CASES]]


def blame_fault(range_: Range, spec: str, cases: Sequence[AttentionCase], adapters: Sequence[str]) -> list[Blame]:
    """Plant a fault on a few cases that can show it and that it is caught on, and explain each."""
    fault = load_fault(spec)
    told = []
    for turn, (case, names) in enumerate(_chosen(range_, fault, cases, adapters)):
        name = names[turn % len(names)]
        shot = range_.shoot(case, name, fault)
        if shot is None or not shot.fired:
            continue
        verdict = Verdict.CRASH if shot.fired & {CRASH, TIMEOUT} else Verdict.WRONG
        examiner = range_.examiner(case, name, fault)
        said = explain(examiner, Record(case, name, verdict), range_=range_, seconds=SECONDS)
        named, equal = said.fault == fault.name, fault.name in said.equals
        told.append(
            Blame(
                fault=fault.name,
                fault_class=str(fault.fault_class),
                case=case.name,
                adapter=name,
                said=said.fault,
                said_class=said.fault_class,
                named=named,
                equal=equal,
                classed=equal or said.fault_class == str(fault.fault_class),
            )
        )
    return told


def blame_all(
    specs: Sequence[str],
    cases: Sequence[AttentionCase],
    adapters: Sequence[str],
    *,
    processes: int,
    on_result: Callable[[Any], None] = lambda _result: None,
) -> list[Blame]:
    """Every fault of `specs`, over several processes."""
    arguments = (tuple(cases), tuple(adapters))
    results = map_faults(blame_fault, specs, arguments, processes=processes, on_result=on_result)
    return [blame for of_fault in results for blame in of_fault]
