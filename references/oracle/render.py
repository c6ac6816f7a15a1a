"""The oracle's table, as cells for a terminal and as markdown for the docs."""

from __future__ import annotations

from collections.abc import Sequence

from references.oracle.masks import MaskComparison
from references.oracle.table import OracleRow

HEADER = ("model", "layer", "dtype", "points", "calls", "masks", "golden", "/bound", "hf_eager", "one-shot", "")
LEGEND = (
    "points: (P, E, W); masks: entries that differ; golden, hf_eager: largest |reference - model|; /bound: over "
    "the row's bound; one-shot: largest |cached - one-shot| of the model."
)
_SHORT = {"float32": "fp32", "bfloat16": "bf16"}


def table_cells(rows: Sequence[OracleRow]) -> list[tuple[str, ...]]:
    """One tuple of strings for each row, in the order of HEADER."""
    return [
        (
            row.model,
            row.layer_kind,
            _SHORT[row.dtype],
            f"{row.points:,}",
            f"{row.calls:,}",
            f"{row.mask_differences:,}",
            f"{row.golden:.1e}",
            "" if row.bound_ratio is None else f"{row.bound_ratio:.2f}",
            f"{row.hf_eager:.1e}",
            f"{row.one_shot:.1e}",
            "ok" if row.ok else "FAIL",
        )
        for row in rows
    ]


def render_markdown(rows: Sequence[OracleRow], masks: MaskComparison | None = None) -> str:
    """A markdown table and, under it, the comparison of masks in one sentence."""
    lines = ["| " + " | ".join(HEADER) + " |", "|" + "---|" * len(HEADER)]
    lines += ["| " + " | ".join(cells) + " |" for cells in table_cells(rows)]
    lines += ["", LEGEND, "", summary(rows)]
    if masks is not None:
        lines += ["", masks.sentence()]
    return "\n".join(lines) + "\n"


def summary(rows: Sequence[OracleRow]) -> str:
    """The whole table in one sentence."""
    if not rows:
        return "Nothing was compared."
    exact = [row for row in rows if row.dtype == "float32"]
    worst = f", largest fp32 difference of golden attention {max(r.golden for r in exact):.1e}" if exact else ""
    return (
        f"transformers {rows[0].transformers}: {sum(r.values for r in rows):,} output values of "
        f"{sum(r.calls for r in rows):,} attention calls{worst}, "
        f"{sum(r.mask_differences for r in rows):,} of {sum(r.mask_cells for r in rows):,} mask entries differ."
    )
