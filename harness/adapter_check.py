"""Checking an adapter against the protocol, in words for the person who wrote it."""

from __future__ import annotations

from typing import Any

from cases.schema import Poison
from harness.adapters.capabilities import Capabilities
from harness.adapters.protocol import PROTOCOL_VERSION, EmptyRow, LseBase, declared
from harness.errors import UsageError

MEMBERS: dict[str, type] = {
    "name": str,
    "capabilities": Capabilities,
    "lse_base": LseBase,
    "lse_includes_sink": bool,
    "empty_row": EmptyRow,
    "poison": Poison,
}


def refuse_incomplete(spec: str, adapter: Any) -> None:
    """Raises UsageError, naming the first problem, for what does not follow the protocol."""
    problems = protocol_problems(adapter)
    if problems:
        raise UsageError(f"{spec} {problems[0]} (`attn-harness doctor --adapter` lists all that it lacks).")


def protocol_problems(adapter: Any) -> list[str]:
    """What an adapter lacks, one sentence each; empty if it follows the protocol."""
    problems = []
    for member, kind in MEMBERS.items():
        if not hasattr(adapter, member):
            problems.append(f"has no member {member!r}; give it a {kind.__name__}")
        elif not isinstance(getattr(adapter, member), kind):
            problems.append(f"member {member!r} is {getattr(adapter, member)!r}; make it a {kind.__name__}")
    problems += [
        f"has no method {method}(...)" for method in ("plan", "run") if not callable(getattr(adapter, method, None))
    ]
    version = declared(adapter, "protocol_version")
    if version != PROTOCOL_VERSION:
        problems.append(f"is written for protocol version {version!r}; this release speaks {PROTOCOL_VERSION}")
    return problems
