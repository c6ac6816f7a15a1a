"""Showing a run as it goes: a live bar on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections import Counter
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from harness.record import Record
from harness.verdict import Verdict

PLAIN_EVERY = 10.0  # seconds between plain lines


class RunProgress:
    """Counts records; use as a context manager. Everything goes to standard error."""

    def __init__(self, total: int, label: str = "cases") -> None:
        self.total, self.label = total, label
        self.verdicts: Counter[Verdict] = Counter()
        self._console = Console(stderr=True)
        self._bar: Progress | None = None
        self._next_line = time.monotonic() + PLAIN_EVERY

    def __enter__(self) -> RunProgress:
        if sys.stderr.isatty():  # not what rich takes for one: with FORCE_COLOR it is any file
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
                console=self._console,
            )
            self._bar.start()
            self._task = self._bar.add_task(self.label, total=self.total)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def add(self, record: Record) -> None:
        """One more record is there; findings are told at once."""
        self.verdicts[record.verdict] += 1
        if record.verdict.is_finding or record.verdict is Verdict.ERROR:
            self.tell(f"{record.verdict} {record.adapter} {record.case.id} {record.case.name}: {record.reason}")
        done = sum(self.verdicts.values())
        if self._bar is not None:
            self._bar.update(self._task, completed=done, description=f"{self.label} {self._counts()}")
        elif time.monotonic() >= self._next_line or done == self.total:
            self._next_line = time.monotonic() + PLAIN_EVERY
            self.tell(f"{done}/{self.total} {self.label}: {self._counts()}")

    def _counts(self) -> str:
        return ", ".join(f"{count} {verdict}" for verdict, count in sorted(self.verdicts.items()))

    def tell(self, line: str) -> None:
        """A line of its own, above the bar where there is one."""
        if self._bar is not None:
            self._bar.console.print(line, markup=False, highlight=False)
        else:
            sys.stderr.write(line + "\n")
            sys.stderr.flush()
