"""What an adapter is asked before it computes anything, with what it raises told as its own failure."""

from __future__ import annotations

from cases.schema import AttentionCase
from harness.adapters.protocol import Adapter
from harness.running.examine import adapter_at_work


def why_unsupported(adapter: Adapter, case: AttentionCase) -> str | None:
    """Why the adapter does not take the case, or None if it does. Raises AdapterFailure."""
    with adapter_at_work("capabilities"):
        return adapter.capabilities.unsupported(case)


def prepare(adapter: Adapter, case: AttentionCase) -> None:
    """Let the adapter compile for the case, if it has anything to. Raises AdapterFailure."""
    if hasattr(adapter, "prepare"):
        with adapter_at_work("prepare"):
            adapter.prepare(case)
