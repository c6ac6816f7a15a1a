"""The bench's tables, and the ratio to an earlier bench."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from harness.bench.measure import STAGES
from harness.errors import UsageError

SHARES = (
    "harness share: of the stages' sum, all but kernel and golden; "
    "of wall: the share of the rate of kernel and golden alone that is lost, nothing waited for stage by stage"
)
SHARED_SHARE = "of wall together: the same where the processes share the device"


def print_measurements(console: Console, rows: list[dict[str, Any]], baseline: dict[tuple[str, ...], float]) -> None:
    """One line per (mix, adapter): rates first, then where the time goes. Columns that hold nothing are left out."""
    columns = (
        "mix",
        "adapter",
        "cases/s",
        "spread",
        "together",
        "x fp64 loop",
        "x fp32 loop",
        "harness share",
        "of wall",
        "of wall together",
        "peak",
        "x baseline",
    )
    lines = []
    for row in rows:
        rate, shared, ratios = row["cases_per_second"], row["shared_cases_per_second"], row["ratio_to_loops"]
        cells = [
            row["mix"],
            row["adapter"],
            f"{rate['median']:.1f}",
            "" if len(rate.get("runs", ())) == 1 else f"{rate['spread']:.0%}",
            "" if shared is None else f"{shared['median']:.1f} by {row['processes']}",
            *(f"{ratios[name]:.2f}" if name in ratios else "" for name in ("straight fp64", "straight fp32")),
            f"{row['harness_share']:.0%}",
            *("" if row[name] is None else f"{row[name]:.0%}" for name in ("wall_share", "shared_wall_share")),
            "" if row["peak_bytes"] is None else f"{row['peak_bytes'] / 2**20:.0f} MiB",
        ]
        before = baseline.get(key(row)) if baseline else None
        lines.append([*cells, "" if before is None else f"{rate['median'] / before:.2f}"])
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    held = [at for at in range(len(columns)) if any(line[at] for line in lines)]
    for name in (columns[at] for at in held):
        table.add_column(name, justify="left" if name in ("mix", "adapter") else "right")
    for line in lines:
        table.add_row(*(line[at] for at in held))
    console.print(table)
    console.print(SHARES, markup=False, highlight=False)
    if any(row["shared_cases_per_second"] is not None for row in rows):
        console.print(SHARED_SHARE, markup=False, highlight=False)
    if baseline and not any(line[-1] for line in lines):
        console.print(
            "x baseline: no row of the baseline is of the same mix, adapter, evidence and device", markup=False
        )
    print_stages(console, [(f"{row['mix']}  {row['adapter']}", row["milliseconds_per_case"]) for row in rows])


def print_stages(console: Console, rows: list[tuple[str, dict[str, float]]]) -> None:
    """Milliseconds per case by stage."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title="milliseconds per case", title_justify="left")
    table.add_column("")
    for name in (*STAGES, "sum"):
        table.add_column(name, justify="right")
    for label, stages in rows:
        values = [stages.get(name, 0.0) for name in STAGES]
        table.add_row(label, *(f"{value:.2f}" for value in [*values, sum(values)]))
    console.print(table)


def key(row: dict[str, Any]) -> tuple[str, ...]:
    """What makes two rows comparable."""
    return (row["mix"], row["adapter"], row["evidence"], row["device"])


def read_baseline(path: Path) -> dict[tuple[str, ...], float]:
    """Median rates by key of a file that `bench --json` wrote. Raises UsageError if it is another file."""
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
        return {key(row): float(row["cases_per_second"]["median"]) for row in body["measurements"]}
    except OSError as problem:
        raise UsageError(f"cannot read the baseline {path}: {problem.strerror}.") from None
    except (ValueError, KeyError, TypeError):
        raise UsageError(f"{path} holds no bench; write one with `attn-harness bench --output FILE`.") from None
