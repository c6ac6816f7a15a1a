"""Finding a fault by name and putting it into an adapter."""

from __future__ import annotations

from importlib import metadata

from harness.adapters.protocol import Adapter
from harness.adapters.registry import load_adapter
from harness.errors import UsageError
from harness.faults.protocol import Fault, PlanFault
from harness.faults.seeds import SEED_FAULTS
from harness.loading import is_file_spec, load_from_file

ENTRY_POINTS = "attn_harness.faults"


def known_faults() -> dict[str, Fault]:
    """Every fault by name: the catalogue's, and what entry points add."""
    faults = {fault.name: fault for fault in SEED_FAULTS}
    for entry in metadata.entry_points(group=ENTRY_POINTS):
        loaded = entry.load()
        for fault in (loaded,) if isinstance(loaded, Fault) else tuple(loaded):
            faults[fault.name] = fault
    return faults


def load_fault(spec: str) -> Fault:
    """A fault by name, or from path/to/file.py:Name. Raises UsageError."""
    if is_file_spec(spec):
        fault = load_from_file(spec, "fault")
        if not isinstance(fault, Fault):
            raise UsageError(f"{spec} is {type(fault).__name__}, not a harness.faults.protocol.Fault.")
        return fault
    faults = known_faults()
    if spec not in faults:
        raise UsageError(f"there is no fault {spec!r}; `attn-harness list faults` names them.")
    return faults[spec]


def equip(adapter_spec: str, fault_spec: str) -> tuple[Adapter, PlanFault | None]:
    """An adapter with a fault in it, and the change to make to each of its plans."""
    fault = load_fault(fault_spec)
    return load_adapter(adapter_spec), fault.on_plan
