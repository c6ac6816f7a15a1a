"""Ctrl-C and SIGTERM: a command that is ended keeps what it has and leaves no process.

SIGTERM, which `timeout` and CI services send, is taken as Ctrl-C is. While modules are imported both end the process:
raised inside an extension module that is being loaded, KeyboardInterrupt may end in an abort or be swallowed.
Nothing was made by then that could be lost, so the process simply ends.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

INTERRUPTED = 128 + signal.SIGINT
TERMINATED = 128 + signal.SIGTERM


def _end(number: int, frame: FrameType | None) -> None:
    del frame
    sys.stderr.write("attn-harness: interrupted before it began.\n")
    sys.stderr.flush()
    os._exit(128 + number)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


@contextmanager
def nothing_to_keep() -> Iterator[None]:
    """Ctrl-C and SIGTERM end the process at once, with exit code 130 or 143. Not where ignored, or in a thread."""
    replaced: dict[int, Any] = {}
    if _in_main_thread():
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            replaced[signal.SIGINT] = signal.default_int_handler
        if signal.getsignal(signal.SIGTERM) not in (signal.SIG_IGN, None):
            replaced[signal.SIGTERM] = signal.getsignal(signal.SIGTERM)
    for number in replaced:
        signal.signal(number, _end)
    try:
        yield
    finally:
        for number, handler in replaced.items():
            signal.signal(number, handler)


@dataclass(slots=True)
class Termination:
    """Whether SIGTERM came."""

    came: bool = False


@contextmanager
def sigterm_as_ctrl_c() -> Iterator[Termination]:
    """The first SIGTERM raises KeyboardInterrupt, so that everything is kept and every worker ended.

    Further ones do nothing: `timeout` sends two in a row. Does nothing where SIGTERM has a handler, or in a thread.
    """
    termination = Termination()
    if not (_in_main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL):
        yield termination
        return

    def end(number: int, frame: FrameType | None) -> None:
        del frame
        signal.signal(number, lambda *_: None)
        termination.came = True
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, end)
    try:
        yield termination
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
