"""Commands as child processes that a test interrupts: Ctrl-C reaches them, and none outlives its test."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


@contextmanager
def child_process(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A child that SIGINT ends; at the end it and everything that it started are killed. `options`: as for Popen.

    A shell starts what runs in its background with SIGINT ignored, and who is started inherits that.
    """
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, text=True, env=environment, preexec_fn=_as_from_a_terminal, **options)
    try:
        yield process
    finally:
        for pid in [process.pid, *descendants(process.pid)] if process.poll() is None else []:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.communicate()


def _as_from_a_terminal() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def children_of(pid: int) -> list[int]:
    """Of all of its threads; none if it is gone."""
    found: list[int] = []
    for tasks in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            found += map(int, tasks.read_text().split())
    return found


def descendants(pid: int) -> list[int]:
    """Children, and theirs."""
    return [found for child in children_of(pid) for found in (child, *descendants(child))]


def is_alive(pid: int) -> bool:
    """False for what has ended and was not waited for, too."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
