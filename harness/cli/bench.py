"""`attn-harness bench`: cases per second, and where the time goes."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

from harness.adapters.registry import load_adapter
from harness.bench.growth import growth as measure_growth
from harness.bench.measure import measure
from harness.bench.mixes import DEFAULT_CASES, MIXES, chosen_mixes
from harness.bench.rendering import print_measurements, print_stages, read_baseline
from harness.bench.shared import measure_shared
from harness.cli.consoles import make_console
from harness.cli.outside import adapter_name
from harness.environment import core_count, installed_versions
from harness.errors import UsageError
from harness.loading import is_file_spec
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
    if growth:
        body["growth"] = [row for name in names for row in _growth(console, name, evidence, limit)]
    else:
        body["measurements"] = []
        for name in names:
            made = load_adapter(name)
            for one in chosen:
                console.print(f"measuring {one.name} on {name}: {one.summary}", markup=False, highlight=False)
                count = cases or DEFAULT_CASES[one.name]
                together = functools.partial(
                    measure_shared, one.name, name, processes, evidence=evidence, runs=runs, seconds=min(5.0, limit)
                )
                measured = measure(
                    one,
                    made,
                    pick_device(made),
                    evidence=evidence,
                    cases=count,
                    runs=runs,
                    seconds=limit,
                    loops=loops,
                    shared=together if processes > 1 else None,
                    processes=processes,
                )
                body["measurements"].append(measured.to_json())
        print_measurements(console, body["measurements"], before)
    if output is not None:
        _write(output, body)
    if as_json:
        print(json.dumps(body))


def _growth(console: Console, name: str, evidence: str, limit: float) -> list[dict[str, Any]]:
    adapter = load_adapter(name)
    rows = []
    for row in measure_growth(adapter, pick_device(adapter), evidence=evidence, seconds=limit):
        rows.append({"adapter": name, **row})
    print_stages(console, [(f"{row['axis']} {row['value']}", row["milliseconds"]) for row in rows])
    return rows


def _write(path: Path, body: dict[str, Any]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
    except OSError as problem:
        raise UsageError(f"cannot write {path}: {problem.strerror}.") from None
