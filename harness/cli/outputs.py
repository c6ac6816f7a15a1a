"""Standard output and error that cannot end a command: what nobody reads is dropped, what cannot be written is told.

`attn-harness run ... | head` closes the pipe while cases still run. The run goes on, every record is kept, and the exit
code says what the verdicts say; Python's own end of it, and click's, would be exit code 1, which means a finding.
A character that the encoding cannot hold is escaped for the same reason.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO


class LastingFile(io.RawIOBase):
    """A file descriptor whose writes do not fail: after the first error, all else is dropped and `problem` says why."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        self.problem: OSError | None = None

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def write(self, data: Any) -> int:
        """The number of bytes taken, which is all of them once a write has failed."""
        if self.problem is None:
            try:
                return os.write(self._descriptor, data)
            except BlockingIOError:  # a pipe that is full and was made not to wait: the buffer above tries again
                raise
            except OSError as problem:
                self.problem = problem
        return len(data)


class Outputs:
    """The files behind standard output and error."""

    def __init__(self) -> None:
        self.files: dict[str, LastingFile] = {}

    def flush(self) -> str | None:
        """Write what is buffered. A sentence if standard output could not take what it was given, its reader apart."""
        for name in self.files:
            with contextlib.suppress(OSError):
                getattr(sys, name).flush()
        file = self.files.get("stdout")
        if file is None or file.problem is None or isinstance(file.problem, BrokenPipeError):
            return None
        return f"cannot write to standard output: {file.problem.strerror}; what was to be told there is cut short."


def _open_what_is_closed() -> None:
    """`attn-harness ... >&-`: a file opened next would be standard output or error, and take what is told there."""
    for number, name in ((0, "stdin"), (1, "stdout"), (2, "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "r" if number == 0 else "w", closefd=False))  # noqa: SIM115
            setattr(sys, f"__{name}__", getattr(sys, name))


@contextmanager
def lasting_outputs() -> Iterator[Outputs]:
    """Put a LastingFile under `sys.stdout` and `sys.stderr`; not where somebody has put another stream there."""
    _open_what_is_closed()
    outputs = Outputs()
    replaced: dict[str, TextIO] = {}
    for name, number in (("stdout", 1), ("stderr", 2)):
        stream = getattr(sys, name)
        if not isinstance(stream, io.TextIOWrapper) or stream is not getattr(sys, f"__{name}__"):
            continue
        stream.flush()
        outputs.files[name] = LastingFile(number)
        replaced[name] = stream
        lasting = io.TextIOWrapper(
            io.BufferedWriter(outputs.files[name]),
            encoding=stream.encoding,
            errors="backslashreplace" if stream.errors == "strict" else stream.errors,
            line_buffering=stream.line_buffering,
        )
        setattr(sys, name, lasting)
    try:
        yield outputs
    finally:
        outputs.flush()
        for name, stream in replaced.items():
            setattr(sys, name, stream)
