"""What a person did wrong, told in one sentence: exit code 2, never a traceback."""

from __future__ import annotations


class UsageError(ValueError):
    """Bad use or a bad environment; the message says what, where and what to do."""
