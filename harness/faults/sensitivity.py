"""Which faults a suite sees, by which evidence, and which it cannot see.

Every fault meets a sample of the cases that are not blind to it, spread from the cheapest to the
dearest, each through one of the adapters it makes sense for, in turn. A fault that this sample misses
meets every other case and adapter before it counts as missed. Controls meet every case.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from cases.schema import AttentionCase
from harness.faults.parallel import map_faults
from harness.faults.protocol import Fault
from harness.faults.registry import load_fault
from harness.faults.shots import LADDER, Range, Shot, targets

SAMPLE = 12  # cases per fault
POISON_LOOKS = 2  # failing shots that are run again with zeroed slots


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """One fault on one suite.

    cases:    cases that are not blind to it and that an adapter takes
    shots:    runs made, `caught` of them with any evidence
    fired:    shots by kind of evidence
    ladder:   shots caught with no more than each rung's evidence, in the order of LADDER
    first:    name, id and adapter of the first case that caught it
    blind:    why the suite cannot see it, where `cases` is 0
    """

    fault: str
    fault_class: str
    is_control: bool
    cases: int
    shots: int
    caught: int
    fired: dict[str, int] = field(default_factory=dict)
    ladder: tuple[int, ...] = ()
    first: tuple[str, str, str] | None = None
    blind: str = ""

    @property
    def as_it_should(self) -> bool:
        """A fault that can be seen is caught; a control is not."""
        return self.caught == 0 if self.is_control else self.caught > 0 or self.cases == 0


def _spread(count: int, sample: int) -> list[int]:
    """`sample` indices of range(count), first and last among them."""
    if count <= sample:
        return list(range(count))
    return sorted({round(i * (count - 1) / (sample - 1)) for i in range(sample)})


def _order(
    fault: Fault, found: Sequence[tuple[AttentionCase, tuple[str, ...]]]
) -> tuple[list[tuple[AttentionCase, str]], list[tuple[AttentionCase, str]]]:
    """(case, adapter) pairs to try anyway, and those that follow if nothing was caught."""
    chosen = range(len(found)) if fault.is_control else _spread(len(found), SAMPLE)
    sample = [(found[i][0], found[i][1][turn % len(found[i][1])]) for turn, i in enumerate(chosen)]
    rest = [(case, name) for case, names in found for name in names if (case, name) not in sample]
    return sample, [] if fault.is_control else rest


def measure(range_: Range, fault: Fault, cases: Sequence[AttentionCase], adapters: Sequence[str]) -> Sensitivity:
    """Shoot one fault at a suite."""
    found = targets(range_, fault, cases, adapters)
    sample, rest = _order(fault, found)
    hits: list[Shot] = []
    made, looks = 0, 0
    fitting: set[str] = set()
    for number, (case, name) in enumerate([*sample, *rest]):
        if number >= len(sample) and hits:
            break
        shot = range_.shoot(case, name, fault, tell_poison=looks < POISON_LOOKS)
        if shot is None:
            continue
        fitting.add(case.id)
        made += 1
        if shot.fired:
            looks += 1
            hits.append(shot)
    seeable = len(found) if fitting else 0
    first = hits[0] if hits else None
    return Sensitivity(
        fault=fault.name,
        fault_class=str(fault.fault_class),
        is_control=fault.is_control,
        cases=seeable,
        shots=made,
        caught=len(hits),
        fired=dict(Counter(kind for hit in hits for kind in hit.fired)),
        ladder=tuple(sum(bool(hit.fired & rung) for hit in hits) for _, rung in LADDER),
        first=None if first is None else (first.case.name, first.case.id, first.adapter),
        blind="" if seeable else _why_blind(range_, fault, cases, adapters),
    )


def _why_blind(range_: Range, fault: Fault, cases: Sequence[AttentionCase], adapters: Sequence[str]) -> str:
    """The commonest reason why no case of the suite can show the fault."""
    fitting = [name for name in adapters if fault.fits(name)]
    if not fitting:
        return "no adapter here that it makes sense for"
    reasons = Counter(fault.blind(case) for case in cases)
    if None in reasons:
        open_cases = [case for case in cases if fault.blind(case) is None]
        refused = Counter(range_.adapter(name).capabilities.unsupported(c) for c in open_cases for name in fitting)
        refused.pop(None, None)
        return (
            f"no adapter takes the cases that could show it: {refused.most_common(1)[0][0]}"
            if refused
            else ("it fits no plan of these adapters")
        )
    return str(reasons.most_common(1)[0][0])


def _measure_named(range_: Range, spec: str, cases: Sequence[AttentionCase], adapters: Sequence[str]) -> Sensitivity:
    return measure(range_, load_fault(spec), cases, adapters)


def measure_all(
    specs: Sequence[str],
    cases: Sequence[AttentionCase],
    adapters: Sequence[str],
    *,
    processes: int,
    on_result: Callable[[Any], None] = lambda _result: None,
) -> list[Sensitivity]:
    """Every fault of `specs` (names or file.py:Name), in their order, over several processes."""
    return map_faults(_measure_named, specs, (tuple(cases), tuple(adapters)), processes=processes, on_result=on_result)


def rungs(results: Sequence[Sensitivity]) -> Iterator[tuple[str, int, int, float]]:
    """For each rung of LADDER: its name, faults caught at least once, faults that can be caught, share of shots."""
    faults = [r for r in results if not r.is_control and r.cases]
    shots = sum(r.shots for r in faults)
    for index, (name, _) in enumerate(LADDER):
        caught = sum(r.ladder[index] > 0 for r in faults)
        yield name, caught, len(faults), sum(r.ladder[index] for r in faults) / max(1, shots)
