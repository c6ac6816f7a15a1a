"""The verdict on one (case, adapter), and the evidence it rests on."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Verdict(StrEnum):
    """Only PASS is a pass."""

    PASS = "PASS"
    WRONG = "WRONG"
    POISONED = "POISONED"  # right once the unused slots are zeroed: they leaked
    CRASH = "CRASH"
    TIMEOUT = "TIMEOUT"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    UNSUPPORTED = "UNSUPPORTED"  # declared beforehand, with a reason
    ERROR = "ERROR"  # the harness itself

    @property
    def is_finding(self) -> bool:
        """True for what the kernel did wrong, or could not be shown to do right."""
        return self not in (Verdict.PASS, Verdict.UNSUPPORTED, Verdict.ERROR)


class Stability(StrEnum):
    """What two more runs in a fresh worker said of a verdict that is not PASS."""

    DETERMINISTIC = "deterministic"
    FLAKY = "flaky"
    STATE_DEPENDENT = "state-dependent"  # only after other cases in the same process


@dataclass(frozen=True, slots=True)
class Evidence:
    """One check of one output.

    kind:    "atol", "lse", "bound", "certificate/flat", "metamorphic/determinism", ...
    passed:  None where the check does not apply; `message` then says why
    measure: plain JSON values (errors, residuals, bounds, the worst row)
    message: one sentence; empty for a pass with nothing to add
    decides: False for what is reported beside the verdict only
    """

    kind: str
    passed: bool | None
    measure: dict[str, Any] = field(default_factory=dict)
    message: str = ""
    decides: bool = True

    def to_json(self) -> dict[str, Any]:
        """Shares `measure`: for writing, not for changing."""
        return {name: getattr(self, name) for name in EVIDENCE_FIELDS}


EVIDENCE_FIELDS = tuple(Evidence.__dataclass_fields__)
