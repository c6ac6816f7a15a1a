"""Predicates over cases: what they match, and what is refused."""

from typing import Any

import pytest

from cases import AttentionCase, Execution, Request
from harness.errors import UsageError
from harness.gate.predicate import parse_predicate

CASE = AttentionCase(
    requests=(Request(300, 4), Request(0, 40)),
    window_left=31,
    page_size=16,
    recipe="spiky",
    execution=Execution(num_splits=3),
)


@pytest.mark.parametrize(
    ("table", "matches"),
    [
        ({"mode": "extend"}, True),
        ({"mode": ["decode", "target_verify"]}, False),
        ({"page_size": 16}, True),
        ({"page_size": [1, 32]}, False),
        ({"window_left": ">=1,<32"}, True),
        ({"window_left": ">=1,<31"}, False),
        ({"window_left": "set"}, True),
        ({"window_left": "none"}, False),
        ({"logits_soft_cap": "none"}, True),
        ({"logits_soft_cap": ">0"}, False),  # null compares with nothing
        ({"logits_soft_cap": "!=5"}, False),
        ({"max_extend_len": ">window_left"}, True),
        ({"max_prefix_len": "<= window_left"}, False),
        ({"max_extend_len": "<logits_soft_cap"}, False),
        ({"sinks": False, "causal": True}, True),
        ({"uses_graph": True}, False),
        ({"num_splits": 3}, True),
        ({"recipe": "sp*"}, True),
        ({"name": "*p16*"}, True),
        ({"id": CASE.id}, True),
        ({"id": "000000000000"}, False),
        ({"mode": "extend", "page_size": 1}, False),
    ],
)
def test_it_matches(table: dict[str, Any], matches: bool) -> None:
    assert parse_predicate(table, "here").matches(CASE) is matches


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"windowleft": 3}, "no field 'windowleft'"),
        ({"window_left": ">=x"}, "compares with 'x'"),
        ({"window_left": ">="}, "write comparisons"),
        ({"window_left": "__import__('os')"}, "write comparisons"),
        ({"window_left": True}, "write a number"),
        ({"sinks": "yes"}, "true or false"),
        ({"mode": 3}, "in quotes"),
        ({"page_size": []}, "empty list"),
        ("mode", "a table"),
    ],
)
def test_it_is_refused(table: Any, said: str) -> None:
    with pytest.raises(UsageError, match="here") as refusal:
        parse_predicate(table, "here")
    assert said in str(refusal.value)
