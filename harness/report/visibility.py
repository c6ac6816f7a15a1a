"""The picture of a finding: which keys its queries should see, and which they saw, as intervals.

What they should see is the rule of references/visibility.py for one row, in integers: this module is
read where there is no torch to import, and a test holds the two against each other. What they saw is
there if the record has an "xray" evidence, with measure

    {"request": 0, "head": 3, "extra": [[q, first, last], ...], "missing": [[q, first, last], ...]}

(q: the query's absolute position; keys first..last inclusive).
"""

from __future__ import annotations

from typing import Any

from cases.schema import AttentionCase
from harness.record import Record

MAX_ROWS = 48
MAX_KEYS = 96


def visible_keys(case: AttentionCase, request: int, position: int) -> tuple[int, int]:
    """First and one-past-last key that the query at absolute `position` of `request` sees."""
    kv_len = case.requests[request].kv_len
    last = min(position + 1, kv_len) if case.causal else kv_len
    return (0 if case.window_left is None else max(0, position - case.window_left)), last


def picture_rows(record: Record, place: dict[str, Any] | None) -> dict[str, Any] | None:
    """The part of the request's mask around the worst row, or None if no row is known to be wrong.

    first_query, first_key, keys: what part; rows: [first, last) of the visible keys of each query;
    marked: the row of the worst place; extra, missing: [q, first, last] where the record has an X-ray.
    """
    xray = next((e.measure for e in record.evidence if e.kind == "xray" and _is_xray(e.measure)), None)
    if xray is not None:
        request, head = int(xray["request"]), xray.get("head")
        touched = [q for q, _, _ in (*xray.get("extra", ()), *xray.get("missing", ()))]
        marked = place["position"] if place and place["request"] == request else (touched[0] if touched else None)
    elif place is not None:
        request, head, marked = int(place["request"]), place.get("head"), int(place["position"])
    else:
        return None
    case = record.case
    if not 0 <= request < case.num_requests:
        return None
    prefix, extend = case.requests[request]
    if marked is None or not prefix <= marked < prefix + extend:
        marked = prefix
    first_query, queries = _part(prefix, extend, marked, MAX_ROWS)
    rows = [visible_keys(case, request, q) for q in range(first_query, first_query + queries)]
    # Where a long request goes wrong: around the left edge of the marked row's window, or its causal edge.
    edge = visible_keys(case, request, marked)[0] or marked
    first_key, keys = _part(0, case.requests[request].kv_len, edge, MAX_KEYS)
    return {
        "request": request,
        "head": head,
        "prefix": prefix,
        "kv_len": prefix + extend,
        "page_size": case.page_size,
        "first_query": first_query,
        "first_key": first_key,
        "keys": keys,
        "rows": [list(row) for row in rows],
        "marked": marked,
        "seen": xray is not None,
        "extra": [] if xray is None else list(xray.get("extra", ())),
        "missing": [] if xray is None else list(xray.get("missing", ())),
    }


def _is_xray(measure: dict[str, Any]) -> bool:
    """Whether a measure has what is drawn of an X-ray: a file of records may come from anywhere."""
    spans = [measure.get("extra", []), measure.get("missing", [])]
    return type(measure.get("request")) is int and all(
        isinstance(rows, list) and all(map(_is_span, rows)) for rows in spans
    )


def _is_span(span: Any) -> bool:
    return isinstance(span, list) and len(span) == 3 and all(type(number) is int for number in span)


def _part(start: int, length: int, around: int, most: int) -> tuple[int, int]:
    """(first, how many): all of [start, start + length), or `most` of it around a place."""
    if length <= most:
        return start, length
    first = min(max(start, around - most // 2), start + length - most)
    return first, most
