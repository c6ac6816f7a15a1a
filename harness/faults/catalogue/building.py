"""What the catalogue's files are written with: installing hooks, changing plans, saying where a fault is blind."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from torch import Tensor

from cases.batch import AttentionBatch
from cases.schema import AttentionCase, Request
from harness.adapters.flash_attention_plans import FlashAttentionPlan, plan_flash_attention
from harness.adapters.flashinfer_plans import SinglePagedPlan, SwaMergePlan, plan_single_paged, plan_swa_merge
from harness.emulation.hooks import EmulatedCudaError, Hooks, Launch
from harness.faults.protocol import PlanFault

FLASHINFER_PAGED = ("flashinfer-paged-*",)
FLASHINFER_MERGE = ("flashinfer-swa-merge*",)
FLASHINFER = (*FLASHINFER_PAGED, *FLASHINFER_MERGE)
FLASH_ATTENTION = ("flash-attn-*",)
SINGLE_PASS = (*FLASHINFER_PAGED, *FLASH_ATTENTION)


# -- kernel hooks --------------------------------------------------------------------------------
# Which arguments of a hook are the value that it may change; the last one unless said otherwise.
_VALUES = {
    "window": (1, 2),
    "key_range": (1, 2),
    "empty_row": (1, 2),
    "mask_packing": (1, 2),
    "merged_lse": (1,),
}


def chain(hooks: Hooks, name: str, function: Callable[..., Any]) -> None:
    """Put `function` behind what the hook `name` does already, so that several faults act in turn."""
    earlier = getattr(hooks, name)
    untouched = not hooks.overrides(name)

    def both(*args: Any) -> Any:
        if untouched:
            return function(*args)
        at = _VALUES.get(name, (len(args) - 1,))
        value = earlier(*args)
        changed = list(args)
        for place, part in zip(at, value if len(at) > 1 else (value,), strict=True):
            changed[place] = part
        return function(*changed)

    def in_place(launch: Launch, values: Tensor) -> Tensor:
        # Callers may go on with the buffer that they handed in.
        changed = both(launch, values)
        if changed is not values:
            values.copy_(changed)
        return values

    setattr(hooks, name, in_place if name == "output" else both)


def kernel(**functions: Callable[..., Any]) -> Callable[[Hooks], None]:
    """An `on_kernel` that puts each function behind the hook of its name."""

    def install(hooks: Hooks) -> None:
        for name, function in functions.items():
            chain(hooks, name, function)

    return install


def kernel_with_memory(make: Callable[[], dict[str, Callable[..., Any]]]) -> Callable[[Hooks], None]:
    """The same for hooks that share state: `make` gives fresh functions each time the fault is installed."""

    def install(hooks: Hooks) -> None:
        kernel(**make())(hooks)

    return install


class EmulatedHang(EmulatedCudaError):
    """A kernel that would never return. Emulated kernels say so instead of waiting for the watchdog."""


def is_paged(launch: Launch) -> bool:
    """True for a kernel that reads the pool through a page table."""
    return launch.kernel != "flashinfer.ragged"


def round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


# -- plans ---------------------------------------------------------------------------------------
def by_plan(
    flash: Callable[[FlashAttentionPlan, AttentionBatch], Any] | None = None,
    paged: Callable[[SinglePagedPlan, AttentionBatch], Any] | None = None,
    merge: Callable[[SwaMergePlan, AttentionBatch], Any] | None = None,
) -> PlanFault:
    """A plan fault from one function per kind of plan; a plan without a function does not fit (None)."""

    functions: dict[type, Callable[..., Any] | None] = {
        FlashAttentionPlan: flash,
        SinglePagedPlan: paged,
        SwaMergePlan: merge,
    }

    def change(plan: Any, batch: AttentionBatch) -> Any:
        function = functions.get(type(plan))
        return None if function is None else function(plan, batch)

    return change


_plan_anew = by_plan(
    flash=lambda _plan, batch: plan_flash_attention(batch),
    paged=lambda _plan, batch: plan_single_paged(batch),
    merge=lambda _plan, batch: plan_swa_merge(batch),
)


@dataclasses.dataclass(frozen=True, slots=True)
class Misreading:
    """A plan fault that plans as if the case had other fields. Several of them misread in turn (`compose`)."""

    changes: Callable[[AttentionCase], dict[str, Any] | None]

    def misread(self, batch: AttentionBatch) -> AttentionBatch | None:
        """The batch with other fields in its case, or None where there is nothing to misread."""
        fields = self.changes(batch.case)
        return None if fields is None else dataclasses.replace(batch, case=batch.case.replace(**fields))

    def __call__(self, plan: Any, batch: AttentionBatch) -> Any:
        other = self.misread(batch)
        return None if other is None else _plan_anew(plan, other)


def replanned(changes: Callable[[AttentionCase], dict[str, Any] | None]) -> PlanFault:
    """A plan fault that plans as if the case had other fields, as a planner that misread its input does.

    `changes` gives the fields, or None where there is nothing to misread.
    """
    return Misreading(changes)


class _RaisingPlan:
    """A plan that the path refuses as soon as it looks into it."""

    def __init__(self, failure: EmulatedCudaError) -> None:
        object.__setattr__(self, "_failure", failure)

    def __getattribute__(self, name: str) -> Any:
        if name in ("__class__", "__dict__", "__reduce_ex__"):
            return object.__getattribute__(self, name)
        raise object.__getattribute__(self, "_failure")


def refused_when(condition: Callable[[AttentionCase], bool], failure: EmulatedCudaError) -> PlanFault:
    """Legal input that the path crashes or hangs on: the run raises `failure` where `condition` holds."""

    def change(plan: Any, batch: AttentionBatch) -> Any:
        return _RaisingPlan(failure) if condition(batch.case) else plan

    return change


# -- blindness -----------------------------------------------------------------------------------
Blind = Callable[[AttentionCase], str | None]


def unless(condition: Callable[[AttentionCase], bool], sentence: str) -> Blind:
    """Blind, for the reason `sentence`, unless `condition` holds."""
    return lambda case: None if condition(case) else sentence


def first_of(*rules: Blind) -> Blind:
    """Blind for the first rule that says so."""

    def blind(case: AttentionCase) -> str | None:
        return next((reason for rule in rules if (reason := rule(case)) is not None), None)

    return blind


def active(case: AttentionCase) -> list[Request]:
    """Requests with new rows: the only ones whose output is looked at."""
    return [r for r in case.requests if r.extend_len > 0]


def cut_off(case: AttentionCase, window_left: int | None = None) -> bool:
    """True if the window hides a key from some query (of `window_left`, or the case's own)."""
    left = case.window_left if window_left is None else window_left
    return left is not None and any(r.kv_len - 1 > left for r in active(case))


has_window = unless(lambda case: case.window_left is not None, "no window")
window_cuts = unless(cut_off, "no query is further than the window from its first key")
causal_only = unless(lambda case: case.causal, "not causal")
several_rows = unless(lambda case: case.causal and case.max_extend_len > 1, "every request has one new row at most")
several_requests = unless(lambda case: len(active(case)) > 1, "one request with new rows")
has_prefix = unless(lambda case: any(r.prefix_len for r in active(case)), "no request has a cached prefix")
pages_of_several = unless(lambda case: case.page_size > 1, "a page is one slot")
under_a_graph = unless(lambda case: case.execution.uses_graph, "no CUDA graph")
with_sinks = unless(lambda case: case.sinks, "no sinks")
with_soft_cap = unless(lambda case: case.logits_soft_cap is not None, "no soft cap")


def visible_per_request(case: AttentionCase) -> list[int]:
    """Keys that the last query of each request with new rows sees."""
    reach = case.max_kv_len if case.window_left is None else case.window_left + 1
    return [min(r.kv_len, reach) for r in active(case)]


def prefix_leg_masked(case: AttentionCase) -> bool:
    """True if the prefix leg of the merge recipe needs a mask: a window that hides part of it from some row."""
    reach = case.window_left
    if reach is None:
        return False
    return any(
        r.prefix_len > 0 and max(r.prefix_len - reach, 0) < min(r.prefix_len, r.kv_len - 1 - reach)
        for r in active(case)
    )


needs_prefix_mask = unless(prefix_leg_masked, "no row's window ends inside the cached prefix that others see")


def row_without_prefix_key(case: AttentionCase) -> bool:
    """True if some new row sees no key of a cached prefix that its request's first rows do see."""
    reach = case.window_left
    return reach is not None and reach > 0 and any(r.prefix_len > 0 and r.extend_len > reach for r in active(case))


needs_masked_rows = unless(row_without_prefix_key, "no row of the prefix leg is without a key")
