"""The one exception of this package: a description that cannot be a case."""

from __future__ import annotations


class CaseError(ValueError):
    """An invalid case; the message is one sentence: what, where, what to change."""
