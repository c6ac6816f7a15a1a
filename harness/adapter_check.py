"""Checking an adapter against the protocol, in words for the person who wrote it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from cases.schema import AttentionCase, Poison
from harness.adapters.capabilities import Capabilities
from harness.adapters.protocol import PROTOCOL_VERSION, Adapter, EmptyRow, LseBase, declared
from harness.errors import UsageError
from references.traits import UNIT_ROUNDOFF

MEMBERS: dict[str, type] = {
    "name": str,
    "capabilities": Capabilities,
    "lse_base": LseBase,
    "lse_includes_sink": bool,
    "empty_row": EmptyRow,
    "poison": Poison,
}


def _is_dtype(value: Any) -> bool:
    return value == "input" or value in UNIT_ROUNDOFF


DECLARATIONS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "merge_legs": (lambda v: isinstance(v, int) and not isinstance(v, bool) and v >= 1, "an integer of 1 or more"),
    "p_dtype": (_is_dtype, f'"input" or one of {", ".join(UNIT_ROUNDOFF)}'),
    "row_sum_dtype": (_is_dtype, f'"input" or one of {", ".join(UNIT_ROUNDOFF)}'),
    "rounded_splits": (lambda v: isinstance(v, bool), "True or False"),
    "p_normalised": (lambda v: isinstance(v, bool), "True or False"),
    "pads_page_0": (lambda v: isinstance(v, bool), "True or False"),
    "masked_score": (
        lambda v: v is None or (isinstance(v, (int, float)) and math.isfinite(v) and v < 0),
        "None or a finite negative number",
    ),
    "devices": (
        lambda v: isinstance(v, tuple) and bool(v) and set(v) <= {"cpu", "cuda"},
        '("cpu",), ("cuda",) or both',
    ),
}


def refuse_incomplete(spec: str, adapter: Any) -> None:
    """Raises UsageError, naming the first problem, for what does not follow the protocol."""
    problems = protocol_problems(adapter)
    if problems:
        raise UsageError(f"{spec} {problems[0]} (`attn-harness doctor --adapter` lists all that it lacks).")


def protocol_problems(adapter: Any) -> list[str]:
    """What an adapter lacks, one sentence each; empty if it follows the protocol."""
    unreadable = [
        problem for member in (*MEMBERS, *DECLARATIONS, "plan", "run") if (problem := _raises(adapter, member))
    ]
    if unreadable:
        return unreadable
    problems = []
    for member, kind in MEMBERS.items():
        if not hasattr(adapter, member):
            problems.append(f"has no member {member!r}; give it a {kind.__name__}")
        elif not isinstance(getattr(adapter, member), kind):
            problems.append(f"member {member!r} is {getattr(adapter, member)!r}; make it a {kind.__name__}")
    problems += [
        f"has no method {method}(...)" for method in ("plan", "run") if not callable(getattr(adapter, method, None))
    ]
    problems += [
        f"declares {member} = {declared(adapter, member)!r}; make it {wanted}"
        for member, (is_right, wanted) in DECLARATIONS.items()
        if not _holds(is_right, declared(adapter, member))
    ]
    version = declared(adapter, "protocol_version")
    if version != PROTOCOL_VERSION:
        problems.append(f"is written for protocol version {version!r}; this release speaks {PROTOCOL_VERSION}")
    return problems


def _raises(adapter: Any, member: str) -> str | None:
    """What is wrong with a member that cannot be read: a property of an adapter's class may compute, and fail."""
    try:
        getattr(adapter, member, None)
    except (Exception, SystemExit) as problem:
        return f"has a member {member!r} that cannot be read: {type(problem).__name__}: {problem}"
    return None


def _holds(is_right: Callable[[Any], bool], value: Any) -> bool:
    try:
        return is_right(value)
    except TypeError:  # a list where a word was meant can be looked up nowhere
        return False


def rule_problem(adapter: Adapter, case: AttentionCase) -> str | None:
    """What is wrong with the adapter's capability rules, as far as `case` shows it: one raises, or gives no reason."""
    try:
        adapter.capabilities.unsupported(case)
    except (Exception, SystemExit) as problem:
        return f"has a capability rule that cannot be used: {type(problem).__name__}: {problem}"
    return None
