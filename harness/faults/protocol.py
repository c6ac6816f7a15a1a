"""What a fault is: a named, known way for an attention path to be wrong.

A fault is a value. It acts in one of these places, and at least one of the functions is given:

- `on_plan(plan, batch)`: returns a changed copy of an adapter's typed plan, or None where it does
  not fit that plan. It works on emulated and on real kernels alike.
- `on_kernel(hooks)`: installs itself in the hooks of the emulated kernels (harness/emulation/hooks.py).

Both may be given: a fault that lives in the planning of one path and in the kernels of another.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatch
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
    """A named fault.

    name:       kebab-case
    summary:    one line, in attention terms
    reports:    public references it stands for ("sglang PR #26513")
    blind:      why a case cannot tell the fault from the truth, or None
    is_control: an equivalent mutant; nothing may fire
    adapters:   globs over names of the adapters where it makes sense
    smallest:   the smallest case known to show it
    """

    name: str
    fault_class: FaultClass
    summary: str
    reports: tuple[str, ...] = ()
    on_plan: PlanFault | None = None
    on_kernel: Callable[..., Any] | None = None
    blind: Callable[[AttentionCase], str | None] = never_blind
    is_control: bool = False
    adapters: tuple[str, ...] = ("*",)
    smallest: AttentionCase | None = None

    def fits(self, adapter: str) -> bool:
        """True if the fault makes sense for an adapter of this name."""
        return any(fnmatch(adapter, pattern) for pattern in self.adapters)


def compose(*faults: Fault) -> Fault:
    """Several faults at once, named a+b.

    Kernel faults install in turn, plan faults change the plan in turn; one that does not fit a plan leaves
    it alone, and only if none fits does the whole not fit. Plan faults that plan anew for a batch they have
    misread (they have a method `misread`) come first and misread in turn. Blind where every one of them is.
    """
    if len(faults) < 2:
        raise ValueError(f"compose takes two faults or more, got {len(faults)}.")
    plan_faults = [fault.on_plan for fault in faults if fault.on_plan is not None]
    anew = [change for change in plan_faults if hasattr(change, "misread")]
    planning = [change for change in plan_faults if not hasattr(change, "misread")]
    in_kernel = [fault.on_kernel for fault in faults if fault.on_kernel is not None]

    def on_plan(plan: Any, batch: AttentionBatch) -> Any:
        changed, misread = None, batch
        for change in anew:
            result = change(plan, misread)
            if result is not None:
                changed, misread = result, change.misread(misread)
        for change in planning:
            result = change(plan if changed is None else changed, batch)
            changed = changed if result is None else result
        return plan if changed is None and in_kernel else changed

    def on_kernel(hooks: Any) -> None:
        for install in in_kernel:
            install(hooks)

    def blind(case: AttentionCase) -> str | None:
        reasons = [fault.blind(case) for fault in faults]
        return None if None in reasons else "; ".join(dict.fromkeys(str(reason) for reason in reasons))

    classes = {fault.fault_class for fault in faults}
    choosy = [fault.adapters for fault in faults if fault.adapters != ("*",)]
    common = tuple(p for p in (choosy[0] if choosy else ("*",)) if all(p in patterns for patterns in choosy))
    return Fault(
        name="+".join(fault.name for fault in faults),
        fault_class=classes.pop() if len(classes) == 1 else FaultClass.OTHER,
        summary=" and ".join(fault.summary.rstrip(".") for fault in faults),
        reports=tuple(dict.fromkeys(report for fault in faults for report in fault.reports)),
        on_plan=on_plan if plan_faults else None,
        on_kernel=on_kernel if in_kernel else None,
        blind=blind,
        is_control=all(fault.is_control for fault in faults),
        adapters=common or tuple(dict.fromkeys(pattern for patterns in choosy for pattern in patterns)),
    )
