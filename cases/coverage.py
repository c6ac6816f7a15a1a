"""Which known edges a case stands on: the axis that coverage of the case space is counted along.

`edges(case)` names them, `ALL_EDGES` is every name there is, so that a report can also say what was
never reached. An edge is a predicate in one of two tables; nothing else needs to know about it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import combinations

from cases.schema import AttentionCase, KvLayout, Mode, PageOrder, Poison, Request

RequestEdge = Callable[[AttentionCase, Request], bool]
CaseEdge = Callable[[AttentionCase], bool]

TILES = (16, 64, 128, 256)
OFFSETS = {"-1": -1, "": 0, "+1": 1}
LONG = 8192


def _at_multiple(unit: int, offset: int, length: int) -> bool:
    """length = n * unit + offset for an n of 1 or more."""
    return length - offset >= unit and (length - offset) % unit == 0


def _prefix_at_page(offset: int, case: AttentionCase, request: Request) -> bool:
    return case.page_size > 2 and _at_multiple(case.page_size, offset, request.prefix_len)


def _kv_at_page(offset: int, case: AttentionCase, request: Request) -> bool:
    return case.page_size > 2 and _at_multiple(case.page_size, offset, request.kv_len)


def _kv_at_tile(tile: int, offset: int, case: AttentionCase, request: Request) -> bool:
    del case
    return request.extend_len > 0 and _at_multiple(tile, offset, request.kv_len)


def _extend_at_tile(tile: int, offset: int, case: AttentionCase, request: Request) -> bool:
    del case
    return request.extend_len == tile + offset


def _over_window(length: Callable[[Request], int], low: int, high: int | None) -> RequestEdge:
    """low <= length - window_left <= high (None: no upper end); False without a window or new rows."""

    def edge(case: AttentionCase, request: Request) -> bool:
        if case.window_left is None or request.extend_len == 0:
            return False
        over = length(request) - case.window_left
        return over >= low and (high is None or over <= high)

    return edge


def _prefix(request: Request) -> int:
    return request.prefix_len


def _extend(request: Request) -> int:
    return request.extend_len


def _kv(request: Request) -> int:
    return request.kv_len


REQUEST_EDGES: dict[str, RequestEdge] = {
    "prefix=0": lambda _, r: r.prefix_len == 0 and r.extend_len > 0,
    "prefix=1": lambda _, r: r.prefix_len == 1,
    "extend=0": lambda _, r: r.extend_len == 0,
    "extend=1": lambda _, r: r.extend_len == 1,
    "kv=0": lambda _, r: r.kv_len == 0,
    "kv=1": lambda _, r: r.kv_len == 1 and r.extend_len == 1,
    "extend>prefix": lambda _, r: r.extend_len > r.prefix_len > 0,
    "one row on a long prefix": lambda _, r: r.extend_len == 1 and r.prefix_len >= LONG,
    "many rows on a long prefix": lambda _, r: r.extend_len > 1 and r.prefix_len >= LONG,
    **{f"prefix=page{name}": partial(_prefix_at_page, offset) for name, offset in OFFSETS.items()},
    **{f"kv=page{name}": partial(_kv_at_page, offset) for name, offset in OFFSETS.items()},
    **{f"kv=tile{t}{name}": partial(_kv_at_tile, t, offset) for t in TILES for name, offset in OFFSETS.items()},
    **{f"extend=tile{t}{name}": partial(_extend_at_tile, t, offset) for t in TILES for name, offset in OFFSETS.items()},
    # A window of L+1 keys: an extend of L+1 rows still fits in it, one of L+2 does not.
    "extend<window+1": _over_window(_extend, -(1 << 31), 0),
    "extend=window+1": _over_window(_extend, 1, 1),
    "extend=window+2": _over_window(_extend, 2, 2),
    "extend>window+2": _over_window(_extend, 3, None),
    "prefix<window": _over_window(_prefix, -(1 << 31), -1),
    "prefix=window": _over_window(_prefix, 0, 0),
    "prefix=window+1": _over_window(_prefix, 1, 1),
    "prefix>window+1": _over_window(_prefix, 2, None),
    "kv<=window": _over_window(_kv, -(1 << 31), 0),
    "kv=window+1": _over_window(_kv, 1, 1),
    "kv=window+2": _over_window(_kv, 2, 2),
}


def _window_is(low: int, high: int) -> CaseEdge:
    return lambda case: case.window_left is not None and low <= case.window_left <= high


def _skewed(case: AttentionCase) -> bool:
    lengths = sorted(request.kv_len for request in case.requests)
    return case.num_requests >= 3 and lengths[-1] >= 64 and lengths[-1] >= 8 * max(1, lengths[-2])


def _graph(relation: Callable[[int, int], bool]) -> CaseEdge:
    """relation(longest kv captured, longest kv replayed)"""

    def edge(case: AttentionCase) -> bool:
        captured = case.execution.capture_requests
        return captured is not None and relation(max(r.kv_len for r in captured), case.max_kv_len)

    return edge


CASE_EDGES: dict[str, CaseEdge] = {
    **{f"mode {mode}": lambda case, mode=mode: case.mode is mode for mode in Mode},  # type: ignore[misc]
    **{f"pages {order}": lambda case, order=order: case.page_order is order for order in PageOrder},  # type: ignore[misc]
    **{f"poison {level}": lambda case, level=level: case.poison is level for level in Poison},  # type: ignore[misc]
    **{f"page size {n}": lambda case, n=n: case.page_size == n for n in (1, 16, 64, 128, 256)},  # type: ignore[misc]
    **{f"group {n}": lambda case, n=n: case.group_size == n for n in (1, 4, 7, 8, 16)},  # type: ignore[misc]
    **{f"head_dim {n}": lambda case, n=n: case.head_dim_qk == n for n in (64, 128, 256)},  # type: ignore[misc]
    "one request": lambda case: case.num_requests == 1,
    "more than 32 requests": lambda case: case.num_requests > 32,
    "one long among short": _skewed,
    "prefix beside none": lambda case: len({r.prefix_len > 0 for r in case.requests if r.extend_len}) == 2,
    "no window": lambda case: case.window_left is None,
    "window 0": _window_is(0, 0),
    "window 1": _window_is(1, 1),
    "window below a page": lambda case: case.window_left is not None and 1 < case.window_left < case.page_size,
    "window of a tile": lambda case: case.window_left is not None and case.window_left + 1 in TILES,
    "window past everything": lambda case: case.window_left is not None and case.window_left >= case.max_kv_len,
    "softcap": lambda case: case.logits_soft_cap is not None,
    "sinks": lambda case: case.sinks,
    "sm_scale": lambda case: case.sm_scale is not None,
    "not causal": lambda case: not case.causal,
    "fp16": lambda case: case.dtype == "float16",
    "fp8 kv": lambda case: case.kv_dtype != case.dtype,
    "head_dim_vo differs": lambda case: case.head_dim_qk != case.head_dim_vo,
    "HND": lambda case: case.kv_layout is KvLayout.HND,
    "spiky": lambda case: case.recipe == "spiky",
    "kv splits": lambda case: (case.execution.num_splits or 1) > 1,
    "dirty workspace": lambda case: case.execution.workspace == "dirty",
    "graph captured shorter": _graph(lambda captured, replayed: captured < replayed),
    "graph captured longer": _graph(lambda captured, replayed: captured > replayed),
}

ALL_EDGES: tuple[str, ...] = (*REQUEST_EDGES, *CASE_EDGES)


def _found(case: AttentionCase) -> Iterator[str]:
    distinct = set(case.requests)
    for name, request_edge in REQUEST_EDGES.items():
        if any(request_edge(case, request) for request in distinct):
            yield name
    for name, case_edge in CASE_EDGES.items():
        if case_edge(case):
            yield name


def edges(case: AttentionCase) -> frozenset[str]:
    """The names of the edges that `case` stands on, all of them in ALL_EDGES."""
    return frozenset(_found(case))


def edge_pairs(case: AttentionCase) -> frozenset[tuple[str, str]]:
    """Pairs of edges met in one case, each in alphabetical order."""
    return frozenset(combinations(sorted(edges(case)), 2))
