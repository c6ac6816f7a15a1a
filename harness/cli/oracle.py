"""`attn-harness oracle`: the references against transformers' own models."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer
from rich.table import Table

from harness.cli.consoles import make_console
from harness.errors import UsageError
from references.oracle import (
    DTYPES,
    MODELS,
    WINDOWS,
    MaskComparison,
    OracleError,
    OracleRow,
    compare_masks,
    render_markdown,
    run_oracle,
)
from references.oracle.render import HEADER, LEGEND, summary, table_cells


def oracle(
    models: Annotated[
        str | None, typer.Option("--models", help=f"Comma-separated; all of {', '.join(MODELS)} by default.")
    ] = None,
    windows: Annotated[
        str, typer.Option("--windows", help="Comma-separated sliding_window values, 2 or more.")
    ] = ",".join(map(str, WINDOWS)),
    dtypes: Annotated[str, typer.Option("--dtypes", help="Comma-separated.")] = ",".join(DTYPES),
    mask_limit: Annotated[
        int, typer.Option("--mask-limit", help="Compare masks for every (P, E, W) up to this; 0 leaves it out.")
    ] = 40,
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print as a markdown table.")] = False,
) -> None:
    """Compare the references with transformers' own models, caches and masks, on the CPU.

    Tiny random models are fed in chunks; at each attention call, golden attention and the HF-style
    reference must agree with what the model computed: in fp32 to 1e-6, in bf16 within each row's bound.
    Takes about a minute, and needs transformers: `pip install -e '.[test]'` in the checkout.

    Examples:

    - `attn-harness oracle --models gemma2 --windows 4 --dtypes float32 --mask-limit 8`
    - `attn-harness oracle --json`
    """
    progress = _Progress()
    try:
        rows = list(
            run_oracle(
                None if models is None else _names(models), _numbers(windows), _names(dtypes), on_step=progress.model
            )
        )
        masks = compare_masks(mask_limit, on_window=progress.masks) if mask_limit else None
    except OracleError as problem:
        raise UsageError(str(problem)) from None
    finally:
        progress.clear()
    if as_json:
        body = {"rows": [row.to_json() for row in rows], "masks": None if masks is None else masks.to_json()}
        print(json.dumps(body))
    elif as_markdown:
        print(render_markdown(rows, masks), end="")
    else:
        _print_table(rows, masks)
    if not all(row.ok for row in rows) or (masks is not None and not masks.ok):
        raise typer.Exit(1)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _numbers(windows: str) -> list[int]:
    try:
        return [int(part) for part in windows.split(",") if part.strip()]
    except ValueError:
        raise UsageError(f"--windows is {windows!r}; give integers separated by commas, as in 2,4,8.") from None


def _print_table(rows: list[OracleRow], masks: MaskComparison | None) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for name in HEADER:
        table.add_column(name, justify="left" if name in ("model", "layer", "dtype", "") else "right")
    for cells in table_cells(rows):
        table.add_row(*cells)
    console = make_console()
    console.print(table)
    console.print(LEGEND, highlight=False)
    console.print(summary(rows), highlight=False)
    if masks is not None:
        console.print(masks.sentence(), highlight=False)


class _Progress:
    """One line on standard error that overwrites itself; nothing where that is no terminal."""

    def model(self, name: str, dtype: str, window: int) -> None:
        self._write(f"oracle: {name}, {dtype}, window {window}")

    def masks(self, window: int) -> None:
        self._write(f"oracle: masks, window {window}")

    def clear(self) -> None:
        self._write("")

    def _write(self, line: str) -> None:
        if sys.stderr.isatty():
            sys.stderr.write(f"\r\x1b[K{line}")
            sys.stderr.flush()
