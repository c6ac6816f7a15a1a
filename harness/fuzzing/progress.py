"""Showing a session as it goes: one live line on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

PLAIN_EVERY = 10.0  # seconds between plain lines


class FuzzProgress:
    """Use as a context manager; everything goes to standard error.

    examples: new cases to draw in all, or None; seconds: how long the session may take, or None.
    """

    def __init__(self, examples: int | None, seconds: float | None) -> None:
        self.examples, self.seconds = examples, seconds
        self.started = time.monotonic()
        self._next_line = self.started + PLAIN_EVERY
        self._console = Console(stderr=True)
        self._bar: Progress | None = None

    def __enter__(self) -> FuzzProgress:
        if self._console.is_terminal:
            self._bar = Progress(
                SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), console=self._console
            )
            self._bar.start()
            self._task = self._bar.add_task("starting", total=None)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.started

    def show(self, cases: int, shrink_runs: int, findings: int, reached: int, edges: int) -> None:
        """Where the session stands: called after every run, shown now and then."""
        if self._bar is None and time.monotonic() < self._next_line:
            return
        self._next_line = time.monotonic() + PLAIN_EVERY
        line = self.line(cases, shrink_runs, findings, reached, edges)
        if self._bar is None:
            self.tell(line)
        else:
            self._bar.update(self._task, description=line)

    def line(self, cases: int, shrink_runs: int, findings: int, reached: int, edges: int) -> str:
        """One line: counts, speed, findings, coverage, what is left."""
        runs = cases + shrink_runs
        parts = [f"{cases} cases"]
        if shrink_runs:
            parts.append(f"{shrink_runs} runs to shrink")
        parts.append(f"{runs / max(self.elapsed, 1e-6):.1f}/s")
        parts.append(f"{findings} finding{'' if findings == 1 else 's'}")
        parts.append(f"{reached}/{edges} edges")
        left = self._left(cases)
        return ", ".join([*parts, left] if left else parts)

    def _left(self, cases: int) -> str:
        """The sooner of the two ends, as far as it can be told."""
        left = []
        if self.seconds is not None:
            left.append(self.seconds - self.elapsed)
        if self.examples is not None and cases:
            left.append((self.examples - cases) * self.elapsed / cases)
        if not left:
            return ""
        seconds = max(0, round(min(left)))
        return f"{seconds // 60}:{seconds % 60:02d} left"

    def tell(self, line: str) -> None:
        """A line that stays."""
        if self._bar is not None:
            self._bar.console.print(line, markup=False, highlight=False)
        else:
            sys.stderr.write(line + "\n")
            sys.stderr.flush()
