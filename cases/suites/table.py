"""What a suite is made of: rows of (edge, case), one readable line each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from cases.schema import AttentionCase, Execution, Request


class Row(NamedTuple):
    """`edge` says in words what the case stands on."""

    edge: str
    case: AttentionCase


@dataclass(frozen=True, slots=True)
class Suite:
    """A named list of cases. `rows` is a function, so that importing a suite builds nothing."""

    name: str
    description: str
    rows: Callable[[], tuple[Row, ...]]

    def cases(self) -> tuple[AttentionCase, ...]:
        """The cases, in the order of the table."""
        return tuple(row.case for row in self.rows())

    def edges(self) -> dict[str, str]:
        """What each case stands on, by case id."""
        return {row.case.id: row.edge for row in self.rows()}


def row(
    edge: str,
    *requests: tuple[int, int],
    heads: tuple[int, int] = (8, 2),
    head_dim: int = 64,
    capture: list[tuple[int, int]] | None = None,
    splits: int | None = None,
    workspace: str = "clean",
    **fields: Any,
) -> Row:
    """One line of a table: requests (prefix_len, extend_len), then only what is unusual.

    `heads` is (query, kv); `head_dim` both head dims; `capture` the requests a graph is captured
    for; the rest are fields of `AttentionCase`.
    """
    captured = None if capture is None else tuple(Request(*pair) for pair in capture)
    unusual: dict[str, Any] = {"head_dim_qk": head_dim, "head_dim_vo": head_dim} | fields
    unusual.setdefault("kv_dtype", unusual.get("dtype", "bfloat16"))
    case = AttentionCase(
        requests=tuple(Request(*pair) for pair in requests),
        num_qo_heads=heads[0],
        num_kv_heads=heads[1],
        execution=Execution(capture_requests=captured, num_splits=splits, workspace=workspace),
        **unusual,
    )
    return Row(edge, case)
