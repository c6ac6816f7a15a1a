"""An exception that nobody foresaw: a sentence that names it, and its traceback in a file. Never a finding.

Python's own end of it is exit code 1, which means that a kernel is wrong. The file is there after a run of hours, which
nobody wants to begin again to see where it failed.
"""

from __future__ import annotations

import os
import sys
import tempfile
import traceback
from pathlib import Path

SHOWN = "ATTN_HARNESS_TRACEBACK"  # set to anything but "" or 0: the traceback goes to standard error
LONGEST = 300  # characters of its text


def unexpected(problem: Exception) -> str:
    """The sentence. Leaves the traceback where it says."""
    told = "".join(traceback.format_exception(problem))
    if isinstance(problem, OSError) and problem.strerror and problem.filename is not None:
        said = f"{os.fsdecode(problem.filename)}: {problem.strerror}"  # of a disk or a permission, not of our code
    else:
        frames = traceback.extract_tb(problem.__traceback__)
        place = f" (at {frames[-1].filename}:{frames[-1].lineno})" if frames else ""
        words = " ".join(str(problem).split())[:LONGEST]
        said = f"the harness itself failed: {type(problem).__name__}{': ' if words else ''}{words}{place}"
    return f"{said}; {_left(told)}."


def _left(told: str) -> str:
    """Where the traceback is."""
    if os.environ.get(SHOWN, "0") not in ("", "0"):
        sys.stderr.write(told)
        return "its traceback is above"
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="attn-harness-", suffix=".traceback", delete=False, encoding="utf-8", errors="backslashreplace"
        ) as file:
            file.write(told)
    except OSError:  # no folder to write to, or a full disk
        return f"set {SHOWN}=1 to see its traceback"
    return f"its traceback is in {Path(file.name)}"
