"""What a fault is: a named, known way for an attention path to be wrong.

A fault is a value. It acts in one of three places, and at least one of the functions is given:

- `on_plan(plan, batch)`: returns a changed copy of an adapter's typed plan, or None where it does
  not fit that plan. It works on emulated and on real kernels alike.
- `on_kernel(hooks)`: installs itself in the hooks of the emulated kernels (harness/emulation/hooks.py).
- `on_reference`: how the reference's answer changes, for diagnosis (harness/diagnosis/).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from cases.batch import AttentionBatch
from cases.schema import AttentionCase


class FaultClass(StrEnum):
    WINDOW = "window"
    EXTENT = "extent"
    PLAN_STALENESS = "plan or graph staleness"
    EMPTY_ROWS = "empty rows / LSE"
    GARBAGE_SLOTS = "garbage slots"
    SPLIT_MERGE = "split-kv merge"
    LSE_BASE = "LSE base"
    INT32 = "int32 offsets"
    LAYOUT = "layout / strides"
    SHAPE = "shape corners"
    MASK_PACKING = "mask packing"
    SCALE_SINK_CAP = "scale / sink / softcap"
    INVARIANCE = "invariance"
    RACE = "race"
    OTHER = "other"


PlanFault = Callable[[Any, AttentionBatch], Any]


def never_blind(case: AttentionCase) -> str | None:
    """The default of `blind`: no case is known where the fault changes nothing."""
    del case
    return None


@dataclass(frozen=True, slots=True)
class Fault:
    """name: kebab-case. summary: one line, in attention terms. reports: FAULTS.md-style public
    references ("sglang PR #26513"). blind: why a case cannot tell the fault from the truth, or None.
    is_control: an equivalent mutant; nothing may fire."""

    name: str
    fault_class: FaultClass
    summary: str
    reports: tuple[str, ...] = ()
    on_plan: PlanFault | None = None
    on_kernel: Callable[..., Any] | None = None
    blind: Callable[[AttentionCase], str | None] = never_blind
    is_control: bool = False
