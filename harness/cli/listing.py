"""`attn-harness list`: adapters, suites, cases, faults, the case schema."""

from __future__ import annotations

import dataclasses
import json
from typing import Annotated, Any

import typer

from cases.recipes import RECIPES
from cases.schema import DTYPES, KV_DTYPES, SCHEMA_VERSION, AttentionCase, KvLayout, Mode, PageOrder, Poison, Request
from cases.suites import SUITES, load_suite
from harness.adapters import registry
from harness.errors import UsageError
from harness.faults.registry import known_faults

KINDS = ("adapters", "suites", "cases", "faults", "schema")


def listing(
    what: Annotated[str, typer.Argument(help=", ".join(KINDS))] = "adapters",
    suite: Annotated[list[str] | None, typer.Option("--suite", "-s", help="With `cases`: of these suites.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """List adapters, suites, cases, faults or the case schema.

    Examples:

    - `attn-harness list`
    - `attn-harness list cases --suite seeds`
    - `attn-harness list faults --json`
    """
    if what not in KINDS:
        raise UsageError(f"there is no list of {what!r}; use one of {', '.join(KINDS)}.")
    makers = {"adapters": _adapters, "suites": _suites, "faults": _faults, "schema": _schema}
    rows = makers[what]() if what in makers else _cases(suite)
    if as_json:
        print(json.dumps(rows))
        return
    width = max((len(row["name"]) for row in rows), default=0)
    for row in rows:
        rest = "  ".join(str(value) for key, value in row.items() if key != "name" and value not in (None, ""))
        print(f"{row['name']:<{width}}  {rest}".rstrip())


def _adapters() -> list[dict[str, Any]]:
    return [
        {"name": e.name, "runs": "runs here" if e.why_not is None else "not here", "why_not": e.why_not}
        for e in registry.available()
    ]


def _suites() -> list[dict[str, Any]]:
    return [{"name": s.name, "cases": len(load_suite(s.name)), "description": s.description} for s in SUITES.values()]


def _cases(suites: list[str] | None) -> list[dict[str, Any]]:
    return [
        {"name": case.name, "id": case.id, "suite": suite}
        for suite in suites or ("smoke", "seeds")
        for case in load_suite(suite)
    ]


def _faults() -> list[dict[str, Any]]:
    return [
        {"name": f.name, "class": str(f.fault_class), "summary": f.summary, "reports": ", ".join(f.reports)}
        for f in known_faults().values()
    ]


CHOICES: dict[str, tuple[str, ...]] = {
    "mode": tuple(Mode),
    "page_order": tuple(PageOrder),
    "poison": tuple(Poison),
    "kv_layout": tuple(KvLayout),
    "dtype": DTYPES,
    "kv_dtype": KV_DTYPES,
    "recipe": tuple(RECIPES),
}


def _schema() -> list[dict[str, Any]]:
    """Every field of a case with its type, default and choices."""
    defaults = AttentionCase(requests=(Request(0, 1),)).to_json()
    rows: list[dict[str, Any]] = [{"name": "schema_version", "type": "int", "default": f"required: {SCHEMA_VERSION}"}]
    for field in dataclasses.fields(AttentionCase):
        default = "required: [[prefix_len, extend_len], ...]" if field.name == "requests" else defaults[field.name]
        row = {"name": field.name, "type": str(field.type), "default": json.dumps(default)}
        if field.name in CHOICES:
            row["choices"] = " | ".join(map(str, CHOICES[field.name]))
        rows.append(row)
    return rows
