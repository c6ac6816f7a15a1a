"""The figures that the gate and the report read out of a record."""

from __future__ import annotations

import math
from typing import Any

from cases.schema import AttentionCase
from harness.record import Record

CERTIFICATE = "certificate/"
RELATION = "metamorphic/"


def _number(value: Any) -> float | None:
    """A finite number, or None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(value)


def error_over_bound(record: Record) -> float | None:
    """The largest error over its row's bound (above 1 is WRONG), or None where no bound was taken."""
    return max(
        (r for e in record.evidence if e.kind == "bound" and (r := _number(e.measure.get("ratio"))) is not None),
        default=None,
    )


def error_over_atol(record: Record) -> float | None:
    """max_abs_diff over the flat tolerance, or None where either is not known."""
    if record.max_abs_diff is None or not record.atol:
        return None
    return _number(record.max_abs_diff / record.atol)


# What a certificate measures: how far from an integer the sum of codes and the count of keys came out.
RESIDUALS = ("s_max", "n_max", "residual")


def certificates(record: Record) -> dict[str, tuple[bool | None, float | None]]:
    """name -> (passed, largest residual) of every certificate in the record; the name is without "certificate/"."""
    return {
        e.kind.removeprefix(CERTIFICATE): (
            e.passed,
            max((r for name in RESIDUALS if (r := _number(e.measure.get(name))) is not None), default=None),
        )
        for e in record.evidence
        if e.kind.startswith(CERTIFICATE)
    }


def total_seconds(record: Record) -> float | None:
    return _number(record.seconds.get("total"))


def family(case: AttentionCase) -> str:
    """The kind of case, as one reads it in a table: mode, window or full, and the extras it has."""
    parts = [str(case.mode), "full" if case.window_left is None else "window"]
    if not case.causal:
        parts.append("bidirectional")
    if case.logits_soft_cap is not None:
        parts.append("softcap")
    if case.sinks:
        parts.append("sinks")
    if case.kv_dtype != case.dtype:
        parts.append("fp8 kv")
    if case.execution.uses_graph:
        parts.append("graph")
    return " · ".join(parts)
