"""Telling findings apart: what kind of failure it is, and what the case must have for it to show."""

from __future__ import annotations

import re

from cases.schema import AttentionCase, KvLayout, Mode, PageOrder, Poison
from harness.judging.cache import only_the_cache
from harness.record import FIRST_SEEN, Record
from harness.verdict import Verdict

OVERWRITTEN = "cache overwritten"
LENGTHS = (16, 32, 64, 128, 256, 512, 1024, 4096, 8192, 32768, 65536)


def kind_of(record: Record) -> str:
    """How a record failed, without its numbers: "wrong", "not finite", "cache overwritten", "poisoned", "timeout",
    "crash: ...".

    Two cases that fail in different kinds are shrunk apart. Which evidence saw it is no part of it: the
    certificates that a case is given change with its id. Raises ValueError for a record that is no finding.
    """
    if not record.verdict.is_finding:
        raise ValueError(f"a record with verdict {record.verdict} did not fail.")
    if record.verdict is Verdict.CRASH:
        return f"crash: {_without_numbers(record.reason.partition(FIRST_SEEN)[0])}"
    if record.verdict is not Verdict.WRONG:
        return str(record.verdict).lower().replace("_", " ")
    failed = [evidence for evidence in record.evidence if evidence.passed is False]
    if any("not_finite" in evidence.measure for evidence in failed):
        return "not finite"
    if only_the_cache([evidence for evidence in failed if evidence.decides]):
        return OVERWRITTEN  # else it would shrink to a case without what makes outputs wrong
    return "wrong"


def _without_numbers(text: str) -> str:
    """Addresses, sizes and indices differ from case to case; the words do not."""
    return re.sub(r"0x[0-9a-fA-F]+|\d+(\.\d+)?", "#", text.partition("\n")[0])[:120]


def traits(case: AttentionCase) -> frozenset[str]:
    """What sets a case apart from the simplest one: what a shrunk case still has, its failure needs.

    A case whose traits include those of a shrunk failure can fail for the same reason.
    """
    return frozenset((*_shape_traits(case), *_field_traits(case)))


def _shape_traits(case: AttentionCase) -> list[str]:
    found = []
    if case.num_requests > 1:
        found.append("several requests")
    if any(r.prefix_len for r in case.requests):
        found.append("prefix")
    if any(r.prefix_len == 0 and r.extend_len for r in case.requests) and case.num_requests > 1:
        found.append("a request without prefix")
    if any(r.extend_len == 0 for r in case.requests):
        found.append("idle request")
    if case.max_extend_len > 1:
        found.append("several rows")
    found += [f"kv >= {n}" for n in LENGTHS if case.max_kv_len >= n]
    found += [f"rows >= {n}" for n in LENGTHS if case.max_extend_len >= n]
    if case.window_left is not None:
        found.append("window")
        reach = case.window_left + 1
        found += ["kv > window"] * (case.max_kv_len > reach)
        found += ["prefix > window"] * any(r.prefix_len > case.window_left and r.extend_len for r in case.requests)
        found += ["rows > window"] * (case.max_extend_len > reach)
    return found


def _field_traits(case: AttentionCase) -> list[str]:
    execution, captured = case.execution, case.execution.capture_requests
    present = {
        f"mode {case.mode}": case.mode is not Mode.EXTEND,
        "group > 1": case.group_size > 1,
        "several kv heads": case.num_kv_heads > 1,
        f"head_dim {case.head_dim_qk}": case.head_dim_qk != 64,
        "head_dim_vo differs": case.head_dim_vo != case.head_dim_qk,
        case.dtype: case.dtype != "bfloat16",
        case.kv_dtype: case.kv_dtype != case.dtype,
        "kv scales": (case.k_scale, case.v_scale) != (1.0, 1.0),
        "not causal": not case.causal,
        "softcap": case.logits_soft_cap is not None,
        "sinks": case.sinks,
        "sm_scale": case.sm_scale is not None,
        "page size > 1": case.page_size > 1,
        f"pages {case.page_order}": case.page_order is not PageOrder.CONTIGUOUS,
        "HND": case.kv_layout is KvLayout.HND,
        f"poison {case.poison}": case.poison is not Poison.FINITE,
        f"recipe {case.recipe}": case.recipe != "normal",
        "graph": captured is not None,
        "graph captured shorter": captured is not None and max(r.kv_len for r in captured) < case.max_kv_len,
        "num_splits set": execution.num_splits is not None,
        "kv splits": (execution.num_splits or 1) > 1,
        "dirty workspace": execution.workspace != "clean",
    }
    return [name for name, holds in present.items() if holds]


def edge_of(case: AttentionCase) -> str:
    """The traits of a shrunk case in words; lengths by their largest step only."""
    shown = set(traits(case))
    for what in ("kv", "rows"):
        steps = [n for n in LENGTHS if f"{what} >= {n}" in shown]
        shown -= {f"{what} >= {n}" for n in steps[:-1]}
    return ", ".join(sorted(shown)) or "any case"


class CaseFails(Exception):
    """Raised inside the engine. Hypothesis tells failures apart by type: see `failure_type`."""

    def __init__(self, record: Record) -> None:
        super().__init__(f"{record.verdict} on case {record.case.id}: {record.reason}")
        self.record = record


_types: dict[str, type[CaseFails]] = {}


def failure_type(kind: str) -> type[CaseFails]:
    """One exception type for each kind of failure, so that several kinds are shrunk in one go."""
    if kind not in _types:
        name = "".join(word.capitalize() for word in re.findall(r"[A-Za-z]+", kind)) or "Failure"
        _types[kind] = type(name, (CaseFails,), {})
    return _types[kind]
