"""Finding a fault by name and putting it into an adapter."""

from __future__ import annotations

from importlib import metadata
from typing import Any

from cases.batch import AttentionBatch
from harness.adapters.protocol import Adapter
from harness.adapters.registry import load_adapter
from harness.emulation.hooks import Hooks
from harness.errors import UsageError
from harness.faults.catalogue import CATALOGUE, CONTROLS
from harness.faults.protocol import Fault, PlanFault, compose
from harness.loading import is_file_spec, load_from_file

ENTRY_POINTS = "attn_harness.faults"


def known_faults() -> dict[str, Fault]:
    """Every fault by name: the catalogue's, and what entry points add."""
    faults = {fault.name: fault for fault in (*CATALOGUE, *CONTROLS)}
    for entry in metadata.entry_points(group=ENTRY_POINTS):
        loaded = entry.load()
        for fault in (loaded,) if isinstance(loaded, Fault) else tuple(loaded):
            faults[fault.name] = fault
    return faults


def load_fault(spec: str) -> Fault:
    """A fault by name, from path/to/file.py:Name, or several at once as a+b. Raises UsageError."""
    if is_file_spec(spec):
        fault = load_from_file(spec, "fault")
        if not isinstance(fault, Fault):
            raise UsageError(f"{spec} is {type(fault).__name__}, not a harness.faults.protocol.Fault.")
        return fault
    faults = known_faults()
    names = spec.split("+")
    for name in names:
        if name not in faults:
            raise UsageError(f"there is no fault {name!r}; `attn-harness list faults` names them.")
    return faults[spec] if len(names) == 1 else compose(*(faults[name] for name in names))


def equip(adapter_spec: str, fault_spec: str) -> tuple[Adapter, PlanFault | None]:
    """An adapter with a fault in it, and the change to make to each of its plans."""
    return plant(adapter_spec, load_fault(fault_spec))


def plant(adapter_spec: str, fault: Fault) -> tuple[Adapter, PlanFault | None]:
    """The same for a fault that is at hand.

    A fault that acts in kernels needs an emulated adapter. One that acts in plans too runs on real ones,
    in plans alone. Raises UsageError where nothing of the fault can act.
    """
    if fault.on_kernel is None or (fault.on_plan is not None and not adapter_spec.endswith("@emulated")):
        return load_adapter(adapter_spec), fault.on_plan
    if is_file_spec(adapter_spec):
        raise UsageError(f"fault {fault.name} acts inside emulated kernels; {adapter_spec} has none to act on.")
    hooks = Hooks()
    fault.on_kernel(hooks)
    adapter = load_adapter(adapter_spec, hooks)
    change = fault.on_plan
    if change is None:
        return adapter, None

    def where_it_fits(plan: Any, batch: AttentionBatch) -> Any:
        changed = change(plan, batch)
        return plan if changed is None else changed

    return adapter, where_it_fits
