"""Edges: a case is credited with what it stands on, and with nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from cases import AttentionCase, Execution
from cases.coverage import ALL_EDGES, CASE_EDGES, REQUEST_EDGES, edge_pairs, edges
from cases.suites import load_suite


def _edges(*requests: tuple[int, int], **fields: Any) -> frozenset[str]:
    return edges(AttentionCase(requests=requests, **fields))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("requests", "fields", "there", "absent"),
    [
        ([(0, 32)], {"window_left": 31}, ["extend=window+1", "kv=window+1", "prefix=0"], ["extend=window+2"]),
        ([(0, 33)], {"window_left": 31}, ["extend=window+2", "kv=window+2"], ["extend=window+1", "extend>window+2"]),
        ([(0, 34)], {"window_left": 31}, ["extend>window+2"], ["extend=window+2"]),
        ([(31, 1)], {"window_left": 31}, ["prefix=window", "extend<window+1", "kv=window+1"], ["prefix=window+1"]),
        ([(32, 1)], {"window_left": 31}, ["prefix=window+1", "kv=window+2"], ["prefix=window", "kv<=window"]),
        ([(33, 0), (1, 1)], {"window_left": 31}, ["extend=0", "kv<=window", "prefix=1"], ["prefix>window+1"]),
        ([(15, 1)], {}, ["prefix=page-1", "kv=page", "kv=tile16", "no window"], ["prefix=page", "kv=page+1"]),
        ([(16, 1)], {}, ["prefix=page", "kv=page+1", "kv=tile16+1"], ["prefix=page-1", "prefix=page+1"]),
        ([(33, 1)], {}, ["prefix=page+1"], ["prefix=page"]),
        ([(1, 1)], {"page_size": 1}, ["page size 1"], ["prefix=page", "kv=page"]),
        ([(0, 63)], {}, ["extend=tile64-1", "kv=tile64-1"], ["extend=tile64"]),
        ([(300, 1), (5, 4), (0, 4)], {}, ["one long among short", "prefix beside none"], ["one request"]),
        ([(0, 0), (0, 1)], {}, ["kv=0", "kv=1", "extend=0"], ["prefix beside none"]),
        ([(9, 1)], {"window_left": 10}, ["window past everything", "window below a page"], ["window of a tile"]),
        ([(9, 1)], {"num_qo_heads": 7, "num_kv_heads": 1}, ["group 7"], ["group 4"]),
    ],
)
def test_edges_of_a_case(
    requests: list[tuple[int, int]], fields: dict[str, Any], there: list[str], absent: list[str]
) -> None:
    found = _edges(*requests, **fields)
    assert set(there) <= found
    assert not set(absent) & found


def test_graph_edges_compare_the_capture_with_the_replay() -> None:
    longer = _edges((9, 2), execution=Execution(capture_requests=((90, 2),)))  # type: ignore[arg-type]
    assert "graph captured longer" in longer
    assert "graph captured shorter" not in longer


def test_names_are_unique_and_every_edge_is_reached_by_a_suite() -> None:
    assert len(ALL_EDGES) == len(set(ALL_EDGES)) == len(REQUEST_EDGES) + len(CASE_EDGES)
    names = ("smoke", "seeds", "model-zoo", "model-zoo-large", "long-context", "corpus")
    reached = frozenset().union(*(edges(built) for name in names for built in load_suite(name)))
    assert reached <= set(ALL_EDGES)
    assert set(ALL_EDGES) - reached == set()


def test_pairs_are_those_of_one_case() -> None:
    built = AttentionCase(requests=((0, 33),), window_left=31)  # type: ignore[arg-type]
    pairs = edge_pairs(built)
    count = len(edges(built))
    assert len(pairs) == count * (count - 1) // 2
    assert ("extend=window+2", "prefix=0") in pairs
