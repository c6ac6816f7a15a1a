"""Steps that each take a while: a live bar on a terminal, a line per step elsewhere."""

from __future__ import annotations

import sys
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


class Steps:
    """Counts steps under a title; use as a context manager. Everything goes to standard error."""

    def __init__(self, total: int, title: str) -> None:
        self.total, self.title, self.done = total, title, 0
        self._console = Console(stderr=True, soft_wrap=True)
        self._bar: Progress | None = None

    def __enter__(self) -> Steps:
        self._say(self.title)
        if self.total and self._console.is_terminal:
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
            self._bar = Progress(*columns, console=self._console)
            self._bar.start()
            self._task = self._bar.add_task("compiling", total=self.total)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def add(self, text: str, seconds: float | None) -> None:
        """One more step is done; `text` "" says nothing but the count, and only where that is a whole tenth."""
        self.done += 1
        if text:
            after = "" if seconds is None else f" ({seconds:.0f} s)"
            self._say(f"{self.done}/{self.total} {text}{after}")
        elif self._bar is None and (self.done == self.total or self.done % max(1, self.total // 10) == 0):
            self._say(f"{self.done}/{self.total}")
        if self._bar is not None:
            self._bar.update(self._task, completed=self.done)

    def _say(self, line: str) -> None:
        if self._bar is not None:
            self._bar.console.print(line, markup=False, highlight=False)
        else:
            sys.stderr.write(line + "\n")
            sys.stderr.flush()
