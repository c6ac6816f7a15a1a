"""`attn-harness doctor`: what is here, which adapters can run, and why the others cannot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from cases.schema import AttentionCase, Request
from cases.suites import load_suite
from harness.adapter_check import protocol_problems, rule_problem
from harness.adapters import registry
from harness.adapters.sglang.report import sglang_report
from harness.adapters.vllm.report import vllm_report
from harness.environment import core_count, gpu_ids, installed_versions
from harness.errors import UsageError
from harness.running.options import Job, RunOptions
from harness.running.runner import make_worker
from harness.verdict import Verdict

PROBE = AttentionCase(requests=(Request(5, 3), Request(0, 2)), window_left=4)


def doctor(
    adapter: Annotated[
        list[str] | None,
        typer.Option(
            "--adapter",
            "-a",
            help="Check this adapter against the protocol and try one case; with --prebuild: build for it. Repeatable.",
        ),
    ] = None,
    suites: Annotated[
        list[str] | None,
        typer.Option("--prebuild", metavar="SUITE", help="Compile what this suite's cases need; repeatable."),
    ] = None,
    arch: Annotated[
        str | None, typer.Option("--arch", help="Compute capability to build for, as 9.0a (default: the GPU here).")
    ] = None,
    jobs: Annotated[int | None, typer.Option("--jobs", help="Compilers at once (default: the cores).")] = None,
    export: Annotated[
        Path | None, typer.Option("--export", help="Pack what was built into this .tar.xz, for another machine.")
    ] = None,
    parcel: Annotated[
        Path | None, typer.Option("--import", help="Lay out a file of --export where the libraries look.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """Say what is installed, which adapters can run here, and why the others cannot.

    Examples:

    - `attn-harness doctor --adapter my_kernel.py:MyKernel`
    - `attn-harness doctor --prebuild smoke --arch 9.0a --export smoke.tar.xz`
    - `attn-harness doctor --import smoke.tar.xz`
    """
    if not suites and (arch is not None or jobs is not None or export is not None):
        raise UsageError("--arch, --jobs and --export go with --prebuild SUITE.")
    if suites and parcel is not None:
        raise UsageError("--import lays out what --prebuild built elsewhere; use one of them.")
    if suites or parcel is not None:
        from harness.prebuild.command import Wish, import_parcel, prebuild

        if parcel is not None:
            raise typer.Exit(import_parcel(parcel, as_json=as_json))
        cases = tuple(case for suite in suites or () for case in load_suite(suite))
        raise typer.Exit(prebuild(Wish(cases, tuple(adapter or ()), arch, jobs, export), as_json=as_json))
    console = Console()
    if adapter:
        raise typer.Exit(max(_check_one(console, spec) for spec in adapter))
    facts: dict[str, Any] = {
        "versions": installed_versions(),
        "gpus": list(gpu_ids()),
        "cores": core_count(),
        "adapters": [{"name": e.name, "runs": e.why_not is None, "why_not": e.why_not} for e in registry.available()],
        "sglang": sglang_report(has_gpu=bool(gpu_ids()), fa3_missing=registry.missing_flash_attention("fa3")),
        "vllm": vllm_report(has_gpu=bool(gpu_ids())),
    }
    if as_json:
        print(json.dumps(facts))
    else:
        _print_facts(console, facts)
    raise typer.Exit(0 if any(a["runs"] for a in facts["adapters"]) else 2)


def _print_facts(console: Console, facts: dict[str, Any]) -> None:
    console.print("  ".join(f"{name} {version}" for name, version in facts["versions"].items()), highlight=False)
    gpus = ", ".join(facts["gpus"]) or "none"
    console.print(f"GPUs: {gpus}; cores: {facts['cores']}\n", highlight=False)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("adapter")
    table.add_column("runs here")
    table.add_column("why not")
    for entry in facts["adapters"]:
        table.add_row(entry["name"], "yes" if entry["runs"] else "no", entry["why_not"] or "")
    console.print(table)
    for sentence in (*facts["sglang"], *facts["vllm"]):
        console.print(sentence, markup=False, highlight=False)


def _check_one(console: Console, spec: str) -> int:
    """Protocol first; then one small case in a worker. 0 fine, 1 wrong answers, 2 not an adapter."""
    adapter = registry.load_adapter(spec)
    problems = protocol_problems(adapter)
    if not problems and (odd := rule_problem(adapter, PROBE)):
        problems = [odd]
    for problem in problems:
        console.print(f"{spec} {problem}.", markup=False, highlight=False, soft_wrap=True)
    if problems:
        return 2
    console.print(f"{spec} follows the adapter protocol.", markup=False, highlight=False)
    worker = make_worker(0)
    try:
        record = worker.examine(Job(PROBE, spec), RunOptions(rerun=False))
    finally:
        worker.stop()
    console.print(f"one small case ({PROBE.name}): {record.verdict} {record.reason}", markup=False, highlight=False)
    return 1 if record.verdict.is_finding else 2 if record.verdict is Verdict.ERROR else 0
