"""Naming a place in an output in attention terms."""

from __future__ import annotations

from typing import Any

from cases.ragged import query_rows
from cases.schema import AttentionCase


def row_place(case: AttentionCase, row: int, head: int | None = None) -> dict[str, Any]:
    """The request, absolute query position and head of packed query row `row`, as JSON values."""
    rows = query_rows(case, "cpu")
    place: dict[str, Any] = {"request": int(rows.request[row]), "position": int(rows.position[row]), "row": row}
    if head is not None:
        place["head"] = head
    return place


def say_place(place: dict[str, Any]) -> str:
    """ "request 1, query position 37, head 2" """
    text = f"request {place['request']}, query position {place['position']}"
    return f"{text}, head {place['head']}" if "head" in place else text
