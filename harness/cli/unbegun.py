"""A run that ended as bad use before its first record: it was none, and leaves nothing that says it lost its cases."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harness.errors import UsageError
from harness.record_files import plan_path


@contextmanager
def removed_if_unbegun(records: Path) -> Iterator[None]:
    """Removes `records` and the plan beside it where a UsageError leaves the file empty.

    A run that is killed or interrupted keeps both: its planned cases were lost.
    """
    try:
        yield
    except UsageError:
        if records.is_file() and not records.stat().st_size:
            records.unlink(missing_ok=True)
            plan_path(records).unlink(missing_ok=True)
        raise
