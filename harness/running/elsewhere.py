"""Another environment's adapters: what `--python` could run, asked of that interpreter itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable

from harness.adapters.registry import Entry
from harness.errors import UsageError
from harness.running.pool import ROOT

ASK = (
    "import json; from harness.adapters.registry import available; "
    "print(json.dumps([[e.name, e.why_not, e.emulated] for e in available()]))"
)
LIMIT = 120.0  # seconds: listing imports torch, and no kernel library


def adapters_of(python: str) -> list[Entry]:
    """The registry's entries in the environment of `python`. Raises UsageError if it cannot be asked."""
    environment = dict(os.environ)
    environment["PYTHONPATH"] = os.pathsep.join(p for p in (str(ROOT), environment.get("PYTHONPATH", "")) if p)
    try:
        answer = subprocess.run(
            [python, "-c", ASK], env=environment, capture_output=True, text=True, timeout=LIMIT, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise UsageError(f"{python} cannot be asked for its adapters: {problem}.") from None
    if answer.returncode != 0:
        words = [line for line in answer.stderr.strip().splitlines() if line.strip()] or ["no message"]
        raise UsageError(f"{python} cannot list its adapters: {words[-1]}.")
    try:
        listed = json.loads(answer.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        raise UsageError(f"{python} did not list its adapters; is it a Python?") from None
    return [Entry(name, _only_there(python), why_not, emulated) for name, why_not, emulated in listed]


def entries_for(python: str) -> list[Entry] | None:
    """The same; None, which stands for this environment's, if `python` is the one that runs this."""
    return None if python == sys.executable else adapters_of(python)


def _only_there(python: str) -> Callable[[object], None]:
    def refuse(hooks: object) -> None:
        del hooks
        raise UsageError(f"this adapter lives in the environment of {python}.")

    return refuse
