"""A predicate over cases, written as a TOML table: which cases a known failure is about.

    case = { mode = "extend", window_left = ">=1", page_size = [16, 32], max_extend_len = ">window_left" }

Every condition must hold. A value is one of
  a plain value      equal to it
  a list             equal to one of them
  ">=1,<64"          comparisons, all of which must hold; the right side is a number or a field
  "none" / "set"     the field is null, or is not
  "walk*"            a pattern, for fields of text

A comparison with null is false. Everything is checked where the predicate is built, so a misspelt
field cannot make a predicate that silently matches nothing.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from cases.schema import AttentionCase
from harness.errors import UsageError

Reader = Callable[[AttentionCase], Any]


def _plain(name: str) -> Reader:
    return lambda case: getattr(case, name)


NUMBERS: dict[str, Reader] = {
    name: _plain(name)
    for name in (
        *("num_requests", "total_q", "total_kv", "max_extend_len", "max_kv_len"),
        *("num_qo_heads", "num_kv_heads", "group_size", "head_dim_qk", "head_dim_vo"),
        *("window_left", "logits_soft_cap", "sm_scale", "k_scale", "v_scale"),
        *("page_size", "pool_pages", "seed"),
    )
} | {
    "min_prefix_len": lambda case: min(r.prefix_len for r in case.requests),
    "max_prefix_len": lambda case: max(r.prefix_len for r in case.requests),
    "min_extend_len": lambda case: min(r.extend_len for r in case.requests),
    "num_splits": lambda case: case.execution.num_splits,
}
TEXTS: dict[str, Reader] = {
    name: _plain(name)
    for name in ("id", "name", "mode", "dtype", "kv_dtype", "page_order", "kv_layout", "poison", "recipe")
} | {"workspace": lambda case: case.execution.workspace}
FLAGS: dict[str, Reader] = {name: _plain(name) for name in ("causal", "sinks")} | {
    "uses_graph": lambda case: case.execution.uses_graph
}
FIELDS: dict[str, Reader] = NUMBERS | TEXTS | FLAGS

_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}
_COMPARISON = re.compile(r"(>=|<=|==|!=|>|<)\s*([A-Za-z_]+|-?\d+(?:\.\d+)?)")

Test = Callable[[AttentionCase], bool]


@dataclass(frozen=True, slots=True)
class CasePredicate:
    """Built by `parse_predicate`; `text` is what it was built from, for people."""

    tests: tuple[Test, ...]
    text: str

    def matches(self, case: AttentionCase) -> bool:
        return all(test(case) for test in self.tests)


def parse_predicate(table: object, where: str) -> CasePredicate:
    """Raises UsageError with one sentence that starts with `where`."""
    if not isinstance(table, Mapping) or not table:
        raise UsageError(
            f'{where}: case is {table!r}; give a table with at least one condition, such as {{ mode = "extend" }}.'
        )
    tests = []
    for field, value in table.items():
        if field not in FIELDS:
            raise UsageError(f"{where}: a case has no field {field!r}; use one of {', '.join(sorted(FIELDS))}.")
        alternatives = value if isinstance(value, list) else [value]
        if not alternatives:
            raise UsageError(f"{where}: {field} is an empty list, which no case can match; give values or remove it.")
        tests.append(_any_of([_one(field, each, f"{where}: {field}") for each in alternatives]))
    return CasePredicate(tuple(tests), ", ".join(f"{field} = {value!r}" for field, value in table.items()))


def _any_of(tests: list[Test]) -> Test:
    return lambda case: any(test(case) for test in tests)


def _one(field: str, value: object, where: str) -> Test:
    read = FIELDS[field]
    if field in FLAGS:
        if not isinstance(value, bool):
            raise UsageError(f"{where} is {value!r}; write true or false.")
        return lambda case: read(case) is value
    if value == "none":
        return lambda case: read(case) is None
    if value == "set":
        return lambda case: read(case) is not None
    if field in TEXTS:
        if not isinstance(value, str):
            raise UsageError(f"{where} is {value!r}; write text in quotes, * stands for anything.")
        return lambda case: fnmatchcase(str(read(case)), value)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return lambda case: read(case) == value
    if isinstance(value, str):
        return _comparisons(read, value, where)
    raise UsageError(f'{where} is {value!r}; write a number, a comparison such as ">=1,<64", "none" or "set".')


def _comparisons(read: Reader, text: str, where: str) -> Test:
    pairs: list[tuple[Callable[[Any, Any], bool], Reader]] = []
    for part in text.split(","):
        found = _COMPARISON.fullmatch(part.strip())
        if found is None:
            raise UsageError(f'{where} is {text!r}; write comparisons such as ">=1,<64", "none" or "set".')
        symbol, right = found[1], found[2]
        if right[0].isalpha() or right[0] == "_":
            if right not in NUMBERS:
                raise UsageError(f"{where} compares with {right!r}, which is no number of a case.")
            pairs.append((_OPERATORS[symbol], NUMBERS[right]))
        else:
            pairs.append((_OPERATORS[symbol], _constant(float(right))))

    def test(case: AttentionCase) -> bool:
        left = read(case)
        if left is None:
            return False
        values = [(compare, right(case)) for compare, right in pairs]
        return all(value is not None and compare(left, value) for compare, value in values)

    return test


def _constant(value: float) -> Reader:
    return lambda case: value  # noqa: ARG005
