"""What a run is asked to do, as a value that travels to a worker as JSON."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from cases.schema import AttentionCase
from harness.errors import UsageError

LONGEST_LIMIT = 1e6
MOST_REPEATS = 10_000
EXPLAINED = 3  # wrong answers of one adapter that a worker explains; more of the same would say the same
EVIDENCE = ("default", "certificate", "metamorphic", "all", "bound", "atol")


@dataclass(frozen=True, slots=True)
class RunOptions:
    """evidence: which kinds are gathered (see EVIDENCE); atol: an explicit flat tolerance, which then decides
    too; fault: a named fault to put into the adapter; time_limit: seconds for one case once it is
    prepared; prepare_limit: seconds to compile what a case needs; rerun: run a non-PASS twice more; explain: say of
    a wrong answer what the kernel does (of an adapter's first few); repeats: runs on the same inputs that must give
    the same bits, where metamorphic checks are gathered."""

    evidence: str = "default"
    atol: float | None = None
    fault: str | None = None
    time_limit: float = 120.0
    prepare_limit: float = 1800.0
    rerun: bool = True
    explain: bool = True
    repeats: int = 20

    def __post_init__(self) -> None:
        if self.evidence not in EVIDENCE:
            raise UsageError(f"--evidence is {self.evidence!r}; use one of {', '.join(EVIDENCE)}.")
        if not 1 <= self.repeats <= MOST_REPEATS:
            raise UsageError(f"--repeats is {self.repeats}; give 1 to {MOST_REPEATS}.")
        if self.atol is not None and not 0 < self.atol < float("inf"):
            raise UsageError(f"--atol is {self.atol}; give a positive number.")
        if not all(0 < limit <= LONGEST_LIMIT for limit in (self.time_limit, self.prepare_limit)):
            raise UsageError(f"a time limit must be a number of seconds above 0, at most {LONGEST_LIMIT:g}.")

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


@dataclass(frozen=True, slots=True)
class Job:
    """One case for one adapter. `adapter` is a registry name or path/to/file.py:ClassName."""

    case: AttentionCase
    adapter: str
    suite: str | None = None
