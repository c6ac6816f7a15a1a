"""A command's work in a forked child, where an adapter may die, exit or print as it likes.

`run` has workers that live through many cases; `explain` and `xray` look at one case, with an adapter that is likely to
be wrong, and outside files are loaded so before they are used (harness/cli/outside.py). The child is forked before any
adapter is loaded and any CUDA is touched (which cannot be forked). It hands its answer over in a file that both hold;
what the adapter prints to standard output goes to standard error.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO

from cases.errors import CaseError
from harness.cli.unexpected import unexpected
from harness.errors import UsageError
from harness.running.nursery import PR_SET_PDEATHSIG

LOOK_EVERY = 0.02  # seconds between looks at a child that has a limit


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command prints, and its exit code."""

    text: str
    code: int


class AdapterDied(Exception):
    """The adapter ended its process, or raised; the text says how, as the reason of a CRASH."""


class AdapterHangs(AdapterDied):
    """It did not answer within the limit."""


def answer_apart(work: Callable[[], Answer], limit: float | None = None) -> Answer:
    """What `work` answers in a child of its own, within `limit` seconds if there is one.

    Raises AdapterDied where the child died or took longer, or an adapter raised what is no Exception (a
    KeyboardInterrupt: a real Ctrl-C ends the child at once and is raised here). UsageError is raised as it was there.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    with tempfile.TemporaryFile() as file:
        pid = os.fork()
        if pid == 0:
            _child(work, file, parent)
        with _ended_with_us(pid):
            code = _exit_code(pid, limit)
        return _read(file, code)


def _exit_code(pid: int, limit: float | None) -> int:
    """How the child ended. Raises AdapterHangs, with the child still there, after `limit` seconds."""
    until = None if limit is None else time.monotonic() + limit
    while True:
        ended, status = os.waitpid(pid, 0 if until is None else os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if until is not None and time.monotonic() > until:
            raise AdapterHangs(f"it took more than {limit:g} seconds")
        time.sleep(LOOK_EVERY)


@contextmanager
def _ended_with_us(pid: int) -> Iterator[None]:
    """Whatever ends the wait ends the child too."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)
        raise


def _read(file: IO[bytes], code: int) -> Answer:
    file.seek(0)
    try:
        told = json.loads(file.read() if code == 0 else b"")
        kind, text = str(told["kind"]), str(told["text"])
        answer = Answer(text, int(told["code"]))
    except (ValueError, TypeError, KeyError, RecursionError):  # no answer, or an adapter wrote to the file
        how = f"with signal {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        raise AdapterDied(f"the process that ran the adapter died {how}") from None
    if kind == "usage":
        raise UsageError(text)
    if kind == "died":
        raise AdapterDied(text)
    return answer


def _child(work: Callable[[], Answer], file: IO[bytes], parent: int) -> None:
    """Does the work, leaves the answer, and ends the process whatever happens."""
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # so a KeyboardInterrupt can only be the adapter's own
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))
        os.dup2(2, 1)
        sys.stdout = sys.stderr
        owner = os.getpid()
        told = _told(work) if os.getppid() == parent else None
        if told is not None and os.getpid() == owner:  # a child that the adapter forked has nothing to say
            file.seek(0)
            file.truncate()
            file.write(json.dumps(told).encode())
            file.flush()
            code = 0
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.flush()
        os._exit(code)


def _told(work: Callable[[], Answer]) -> dict[str, object]:
    try:
        answer = work()
    except (UsageError, CaseError) as problem:
        return {"kind": "usage", "text": str(problem), "code": 2}
    except AdapterDied as death:
        return {"kind": "died", "text": str(death), "code": 1}
    except Exception as problem:
        # The harness's own: adapters' exceptions were told apart where they were called.
        return {"kind": "usage", "text": unexpected(problem), "code": 2}
    except BaseException as cause:
        return {"kind": "died", "text": f"the adapter raised {type(cause).__name__}", "code": 1}
    return {"kind": "answer", "text": answer.text, "code": answer.code}
