"""Where an output is wrong: requests, query positions, heads, and the edge that the wrong rows begin at."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from cases.ragged import query_rows
from cases.schema import AttentionCase

TILES = (128, 64)


def spans(values: Sequence[int]) -> str:
    """ "3, 5..9 and 12" from sorted integers."""
    runs: list[list[int]] = []
    for value in values:
        if runs and value == runs[-1][1] + 1:
            runs[-1][1] = value
        else:
            runs.append([value, value])
    words = [str(a) if a == b else f"{a}..{b}" for a, b in runs]
    if len(words) > 6:
        words = [*words[:5], f"... ({len(values)} in all)"]
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]


def say_where(case: AttentionCase, wrong: Tensor, limit: int = 3) -> list[str]:
    """At most `limit` lines for wrong rows, bool [total_q, num_qo_heads]."""
    rows = query_rows(case, wrong.device)
    by_row = wrong.any(1)
    if not bool(by_row.any()):
        return []
    hit = sorted({int(r) for r in rows.request[by_row].tolist()})
    if len(hit) > 1 and bool(by_row.all()):
        return [f"all {case.total_q} rows of all {len(hit)} requests, {_heads(case, wrong)}"]
    all_rows = list(zip(rows.request.tolist(), rows.position.tolist(), by_row.tolist(), strict=True))
    bad = {(r, p) for r, p, is_wrong in all_rows if is_wrong}
    edge = _common_edge(case, bad, {(r, p) for r, p, _ in all_rows} - bad)
    lines = []
    for request in hit[: limit if len(hit) <= limit else limit - 1]:
        mine = rows.request == request
        positions = rows.position[mine & by_row].tolist()
        text = f"request {request}, {_positions(case, request, positions, edge)}, {_heads(case, wrong[mine & by_row])}"
        lines.append(text)
    if len(hit) > limit:
        lines.append(f"and requests {spans(hit[limit - 1 :])} of {case.num_requests}")
    which = _which_requests(case, hit)
    if which:
        lines[0] = f"{which}: {lines[0]}"
    return lines


def _positions(case: AttentionCase, request: int, positions: list[int], edge: str) -> str:
    prefix, extend = case.requests[request]
    edge = edge or _edge(case, request, positions)
    if len(positions) == extend:
        words = f"all {extend} query positions ({spans(positions)})" if extend > 1 else f"query position {positions[0]}"
    else:
        words = (
            f"query position{'s' if len(positions) > 1 else ''} {spans(positions)} of {prefix}..{prefix + extend - 1}"
        )
    return f"{words} ({edge})" if edge else words


Past = Callable[[int, int], bool]  # (request, query position) -> is it past an edge?


def _edges_of(case: AttentionCase) -> tuple[tuple[str, Past], ...]:
    """Edges of the window, as predicates of a query position."""
    left = case.window_left
    if left is None:
        return ()
    prefixes = [r.prefix_len for r in case.requests]
    return (
        (f"past window_left={left}", lambda _r, p: p > left),
        ("whose window lies in the new rows alone", lambda r, p: p - left >= prefixes[r]),
        ("whose window begins later than the first row's", lambda r, p: p - left > max(0, prefixes[r] - left)),
    )


def _common_edge(case: AttentionCase, wrong: set[tuple[int, int]], right: set[tuple[int, int]]) -> str:
    """The edge of the window with all wrong rows (request, position) past it and no right one."""
    if not right:
        return ""
    for words, past in _edges_of(case):
        if all(past(*row) for row in wrong) and not any(past(*row) for row in right):
            return words
    return ""


def _edge(case: AttentionCase, request: int, positions: list[int]) -> str:
    """The page or tile edge that the wrong rows of one request begin at, if right ones come before."""
    prefix, extend = case.requests[request]
    first = min(positions)
    if first == prefix or positions != list(range(first, prefix + extend)):
        return ""
    if first % case.page_size == 0 and case.page_size > 1:
        return f"from the page edge at {first}"
    for tile in TILES:
        if first % tile == 0:
            return f"from the tile edge at {first}"
        if (first - prefix) % tile == 0:
            return f"from row {first - prefix}, a tile edge of the rows"
    return ""


def _heads(case: AttentionCase, wrong: Tensor) -> str:
    heads = torch.nonzero(wrong.any(0)).flatten().tolist()
    group = case.group_size
    if len(heads) == case.num_qo_heads:
        return "all heads" if case.num_qo_heads > 1 else "its one head"
    places = sorted({h % group for h in heads})
    groups = sorted({h // group for h in heads})
    if len(heads) == len(places) * case.num_kv_heads:
        return f"heads {spans(places)} of every group of {group}"
    if len(heads) == len(groups) * group:
        return f"the query heads of kv head{'s' if len(groups) > 1 else ''} {spans(groups)}"
    return f"head{'s' if len(heads) > 1 else ''} {spans(heads)} of {case.num_qo_heads}"


def _which_requests(case: AttentionCase, hit: list[int]) -> str:
    """What the wrong requests have in common that the right ones lack."""
    active = [i for i, r in enumerate(case.requests) if r.extend_len]
    if len(active) < 2:
        return ""
    if hit == active:
        return "all requests"
    if hit == active[1:]:
        return "all requests but the first"
    if hit == active[-1:]:
        return "only the last request"
    if hit == active[:1]:
        return "only the first request"
    size = case.page_size
    common: tuple[tuple[str, Callable[[int], bool]], ...] = (
        ("requests with a prefix", lambda i: case.requests[i].prefix_len > 0),
        ("requests without a prefix", lambda i: case.requests[i].prefix_len == 0),
        ("requests that end on a page edge", lambda i: case.requests[i].kv_len % size == 0),
        ("requests that end inside a page", lambda i: case.requests[i].kv_len % size != 0),
        ("requests of several new rows", lambda i: case.requests[i].extend_len > 1),
        ("requests shorter than the longest", lambda i: case.requests[i].kv_len < case.max_kv_len),
    )
    for words, belongs in common:
        if [i for i in active if belongs(i)] == hit:
            return words
    return ""
