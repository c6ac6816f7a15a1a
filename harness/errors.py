"""What ends a command, told in one sentence: exit code 2 (a finding: 1), never a traceback."""

from __future__ import annotations


class UsageError(ValueError):
    """Bad use or a bad environment; the message says what, where and what to do."""


class KernelFailed(UsageError):
    """A kernel is wrong where a command needs it right: a finding, exit code 1."""
