"""What an engine is asked to do, and who is told of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from hypothesis.database import ExampleDatabase

from harness.fuzzing.finding import Finding
from harness.record import Record


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """examples: new cases to draw (None: no limit); seconds: until when (None: no limit)
    seed, shard: which sequence of cases; shrink_runs, shrink_seconds: the most that shrinking one round may take
    use_target: let Hypothesis climb towards larger error over bound
    database: shared failing examples, replayed first (None: nothing is shared)"""

    adapter: str
    profile: str = "quick"
    seed: int = 0
    shard: int = 0
    examples: int | None = None
    seconds: float | None = None
    shrink_runs: int = 600
    shrink_seconds: float = 300.0
    explain_seconds: float = 60.0
    most_findings: int | None = None
    use_target: bool = False
    database: ExampleDatabase | None = None


class Listener(Protocol):
    """Who is told what an engine does, in the engine's thread."""

    def on_record(self, record: Record) -> None:
        """A new case was run."""
        ...

    def on_shrink(self, record: Record) -> None:
        """A step of shrinking was run."""
        ...

    def on_finding(self, finding: Finding) -> None: ...
