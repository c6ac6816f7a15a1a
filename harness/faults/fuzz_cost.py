"""How many generated cases it takes to catch each fault: the median over seeds."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings

from cases.draw_limits import DrawLimits
from cases.schema import AttentionCase, KvLayout, Mode
from cases.strategies import attention_cases
from harness.faults.parallel import map_faults
from harness.faults.registry import load_fault
from harness.faults.shots import Range

SEEDS = 20

# All that some emulated path takes; a case that a path refuses counts as drawn, not as run.
LIMITS = DrawLimits(
    sinks=True,
    bidirectional=True,
    graph_modes=(Mode.DRAFT_EXTEND_V2, Mode.DECODE),
    num_splits=True,
    kv_layouts=(KvLayout.NHD, KvLayout.HND),
)


@dataclass(frozen=True, slots=True)
class FuzzCost:
    """`drawn` holds, for each seed, the number of cases up to the first that caught the fault, or None."""

    fault: str
    is_control: bool
    drawn: tuple[int | None, ...]

    @property
    def caught(self) -> int:
        return sum(n is not None for n in self.drawn)

    @property
    def median(self) -> float | None:
        """Median over the seeds, those that never caught it counting as infinity; None if that is one."""
        counts = sorted(float("inf") if n is None else n for n in self.drawn)
        middle = statistics.median(counts)
        return None if middle == float("inf") else middle


def draw_cases(number: int, of_seed: int, profile: str = "quick") -> list[AttentionCase]:
    """`number` generated cases (fewer if Hypothesis finds no more)."""
    drawn: list[AttentionCase] = []

    @seed(of_seed)
    @settings(
        max_examples=number,
        database=None,
        deadline=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(attention_cases(profile, LIMITS))
    def collect(case: AttentionCase) -> None:
        drawn.append(case)

    collect()
    return drawn[:number]


def _cost_of(range_: Range, spec: str, pools: Sequence[Sequence[AttentionCase]], adapters: Sequence[str]) -> FuzzCost:
    fault = load_fault(spec)
    fitting = [name for name in adapters if fault.fits(name)]
    counts: list[int | None] = []
    for pool in pools:
        count = None
        for number, case in enumerate(pool, 1):
            taking = [name for name in fitting if range_.supports(case, name)]
            if not taking or fault.blind(case) is not None:
                continue
            shot = range_.shoot(case, taking[number % len(taking)], fault)
            if shot is not None and shot.fired:
                count = number
                break
        counts.append(count)
    return FuzzCost(fault.name, fault.is_control, tuple(counts))


def fuzz_costs(
    specs: Sequence[str],
    number: int,
    adapters: Sequence[str],
    *,
    processes: int,
    seeds: int = SEEDS,
    on_result: Callable[[Any], None] = lambda _result: None,
) -> list[FuzzCost]:
    """The cost of every fault, over `seeds` pools of up to `number` generated cases."""
    pools = tuple(tuple(draw_cases(number, of_seed)) for of_seed in range(seeds))
    return map_faults(_cost_of, specs, (pools, tuple(adapters)), processes=processes, on_result=on_result)
