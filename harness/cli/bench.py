"""`attn-harness bench`: cases per second, and where the time goes."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

from harness.adapters.registry import load_adapter
from harness.bench.growth import growth as measure_growth
from harness.bench.measure import measure
from harness.bench.mixes import DEFAULT_CASES, MIXES, Mix, chosen_mixes
from harness.bench.rendering import print_measurements, print_stages, read_baseline
from harness.bench.shared import Together
from harness.cli.consoles import make_console
from harness.cli.outside import adapter_name
from harness.environment import core_count, installed_versions
from harness.errors import UsageError
from harness.loading import is_file_spec
from harness.record_files import replace_text
from harness.running.options import RunOptions
from harness.running.worker import pick_device

DEFAULT_ADAPTER = "flashinfer-swa-merge@emulated"
FORMAT = 1


def bench(
    adapter: Annotated[
        list[str] | None, typer.Option("--adapter", "-a", help="Adapter name or file.py:ClassName; repeatable.")
    ] = None,
    mix: Annotated[
        list[str] | None, typer.Option("--mix", "-m", help=f"{', '.join(MIXES)}; repeatable (default: short).")
    ] = None,
    evidence: Annotated[str, typer.Option("--evidence", help="bound, default, certificate or atol.")] = "bound",
    cases: Annotated[int | None, typer.Option("--cases", min=1, help="Cases in a run (default: by mix).")] = None,
    runs: Annotated[int, typer.Option("--runs", min=1, help="Runs, of which the median and the spread are told.")] = 5,
    seconds: Annotated[float, typer.Option("--seconds", help="No further run of a measurement after this.")] = 60.0,
    minutes: Annotated[float | None, typer.Option("--minutes", help="The same in minutes.")] = None,
    processes: Annotated[
        int, typer.Option("--processes", min=1, help="Measure this many processes on the device together, too.")
    ] = 1,
    loops: Annotated[
        bool, typer.Option("--loops/--no-loops", help="Time the straight loops on the same shapes.")
    ] = True,
    growth: Annotated[bool, typer.Option("--growth", help="Time per case against tokens, requests and heads.")] = False,
    threads: Annotated[
        int, typer.Option("--threads", min=1, max=1024, help="CPU threads (default: 1, as a worker has).")
    ] = 1,
    baseline: Annotated[
        Path | None, typer.Option("--baseline", help="A file written by --output to compare with.")
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the figures there as JSON.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON instead of tables.")] = False,
) -> None:
    """Measure cases per second of adapters on fixed mixes, in this process, and where the time goes.

    A straight loop over cases and requests is timed beside it, with the same adapter on the same shapes.

    Examples:

    - `attn-harness bench --cases 4 --runs 1 --adapter torch-sdpa`
    - `attn-harness bench --mix short --mix serving --adapter flash-attn-3 --processes 4 --output bench.json`
    """
    RunOptions(evidence=evidence)  # refuses another word at once
    limit = seconds if minutes is None else minutes * 60
    if not limit > 0:
        raise UsageError("--seconds and --minutes must be above 0.")
    torch.set_num_threads(threads)
    if output is not None and output.is_dir():
        raise UsageError(f"cannot write {output}: it is a folder; name a file.")
    before = {} if baseline is None else read_baseline(baseline)
    chosen = chosen_mixes(mix or ["short"])
    console = make_console(stderr=as_json)
    names = adapter or [DEFAULT_ADAPTER]
    for name in filter(is_file_spec, names):
        adapter_name(name)  # refused before anything is measured
    body: dict[str, Any] = {
        "bench_format": FORMAT,
        "versions": installed_versions(),
        "cores": core_count(),
        "threads": torch.get_num_threads(),
    }
    rows: list[dict[str, Any]] = []
    body["growth" if growth else "measurements"] = rows

    def keep() -> None:
        # What is no file, such as a pipe, gets the figures once, at the end.
        if output is not None and (output.is_file() or not output.exists()):
            _write(output, body)

    try:
        for name in names:
            if growth:
                _growth(name, evidence, limit, rows, keep)
            else:
                plan = Plan(evidence, cases, runs, limit, loops, processes)
                _measure(console, name, chosen, plan, rows, keep)
    finally:  # what was measured is told when the bench fails or is ended, too
        if rows:
            if growth:
                print_stages(console, [(_label(row), row["milliseconds"]) for row in rows])
            else:
                print_measurements(console, rows, before)
            if as_json:
                print(json.dumps(body))
            if output is not None:
                _write(output, body)


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """What every measurement of a bench has in common; `cases` None: by mix."""

    evidence: str
    cases: int | None
    runs: int
    seconds: float
    loops: bool
    processes: int


def _measure(
    console: Console, name: str, mixes: list[Mix], plan: Plan, rows: list[dict[str, Any]], keep: Callable[[], None]
) -> None:
    """Append a row for each mix as soon as there are figures; `keep` is called after every change."""
    adapter = load_adapter(name)
    with Together(name, plan.processes, evidence=plan.evidence) as together:
        for mix in mixes:
            console.print(f"measuring {mix.name} on {name}: {mix.summary}", markup=False, highlight=False)
            measured = measure(
                mix,
                adapter,
                pick_device(adapter),
                evidence=plan.evidence,
                cases=plan.cases or DEFAULT_CASES[mix.name],
                runs=plan.runs,
                seconds=plan.seconds,
                loops=plan.loops,
            )
            rows.append(measured.to_json())
            keep()
            if plan.processes > 1:
                shared, alone = together.measure(mix.name, runs=plan.runs, seconds=min(5.0, plan.seconds))
                measured = dataclasses.replace(measured, shared=shared, shared_alone=alone, processes=plan.processes)
                rows[-1] = measured.to_json()
                keep()


def _growth(name: str, evidence: str, limit: float, rows: list[dict[str, Any]], keep: Callable[[], None]) -> None:
    adapter = load_adapter(name)
    for row in measure_growth(adapter, pick_device(adapter), evidence=evidence, seconds=limit):
        rows.append({"adapter": name, **row})
        keep()


def _label(row: dict[str, Any]) -> str:
    return f"{row['axis']} {row['value']}  {row['adapter']}"


def _write(path: Path, body: dict[str, Any]) -> None:
    replace_text(path, json.dumps(body, indent=1) + "\n")
