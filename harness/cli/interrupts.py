"""Ctrl-C while modules are imported.

Raised inside an extension module that is being loaded, KeyboardInterrupt may end in an abort or be swallowed.
Nothing was made by then that could be lost, so the process simply ends.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

INTERRUPTED = 130


def _end(number: int, frame: FrameType | None) -> None:
    del number, frame
    sys.stderr.write("attn-harness: interrupted before it began.\n")
    sys.stderr.flush()
    os._exit(INTERRUPTED)


@contextmanager
def nothing_to_keep() -> Iterator[None]:
    """Ctrl-C ends the process at once, with exit code 130. Does nothing where Ctrl-C is ignored, or in a thread."""
    ours = threading.current_thread() is threading.main_thread() and (
        signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )
    if not ours:
        yield
        return
    signal.signal(signal.SIGINT, _end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
