"""`attn-harness fuzz`: a property-based session that finds distinct failures and leaves them small."""

from __future__ import annotations

import json
import secrets
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from harness.cli.consoles import make_console
from harness.cli.interrupts import INTERRUPTED, nothing_to_keep
from harness.cli.run import AtolOption, EvidenceOption, FaultOption, PythonOption, ReportsOption
from harness.cli.selection import say_not_run, select_adapters
from harness.errors import UsageError
from harness.running.elsewhere import entries_for
from harness.running.options import RunOptions
from harness.verdict import Stability, Verdict

if TYPE_CHECKING:
    from harness.fuzzing.session import SessionOptions, SessionResult

DEFAULT_MINUTES = 5.0
RARE = 12  # edges and pairs listed at most


def fuzz(
    adapter: Annotated[
        list[str] | None,
        typer.Option("--adapter", "-a", help="Adapter name, glob, or path/to/file.py:ClassName; repeatable."),
    ] = None,
    minutes: Annotated[float | None, typer.Option(help="How long (default: 5, unless --examples is given).")] = None,
    examples: Annotated[int | None, typer.Option(help="How many new cases to draw for each adapter.")] = None,
    seed: Annotated[int | None, typer.Option(help="Which cases are drawn (default: any; the session says).")] = None,
    profile: Annotated[str, typer.Option(help="quick, ci, nightly or long-context: how large cases may be.")] = "quick",
    fault: FaultOption = None,
    evidence: EvidenceOption = "default",
    atol: AtolOption = None,
    time_limit: Annotated[float, typer.Option(help="Seconds for one case, compiling apart.")] = 120.0,
    workers: Annotated[
        int | None, typer.Option(help="Worker processes (default: one per GPU, without a GPU one per adapter).")
    ] = None,
    workers_per_gpu: Annotated[int, typer.Option(help="Workers that share one GPU.")] = 1,
    target: Annotated[bool, typer.Option("--target", help="Climb towards larger error over bound.")] = False,
    coverage: Annotated[bool, typer.Option("--coverage", help="Say which edges and pairs were reached.")] = False,
    ray: Annotated[
        str | None, typer.Option("--ray", help="Address of a Ray cluster ('auto', or 'local' to start one).")
    ] = None,
    redis: Annotated[
        str | None, typer.Option("--redis", help="With --ray: URL of a Redis that shares failing examples.")
    ] = None,
    python: PythonOption = sys.executable,
    reports: ReportsOption = Path("reports"),
    as_json: Annotated[bool, typer.Option("--json", help="Print what came of it as JSON.")] = False,
) -> None:
    """Draw cases, shrink and explain what fails, and go on to find something else.

    Exit code 0 without a finding, 1 with one, 130 after Ctrl-C and 143 after SIGTERM; everything found is kept.

    Examples:

    - `attn-harness fuzz --adapter torch-sdpa --examples 20 --seed 1`
    - `attn-harness fuzz --adapter flash-attn-4 --minutes 10`
    """
    try:
        with nothing_to_keep():
            from harness.fuzzing.session import Session, SessionOptions
    except ModuleNotFoundError as missing:
        if missing.name != "hypothesis":
            raise
        raise UsageError("fuzzing needs hypothesis, which is not installed; `pip install hypothesis`.") from None

    if minutes is None and examples is None:
        minutes = DEFAULT_MINUTES
    entries = entries_for(python)
    options = SessionOptions(
        adapters=tuple(select_adapters(adapter or (), entries)),
        seed=secrets.randbelow(1 << 31) if seed is None else seed,
        profile=profile,
        examples=examples,
        minutes=minutes,
        workers=workers,
        workers_per_gpu=workers_per_gpu,
        use_target=target,
        python=python,
    )
    say_not_run(adapter or (), entries)
    run_options = RunOptions(evidence=evidence, atol=atol, fault=fault, time_limit=time_limit)
    if ray is None and redis is not None:
        raise UsageError("--redis goes with --ray; without a cluster there is nobody to share examples with.")
    if ray is None:
        session = Session(options, run_options, reports)
    else:
        from harness.fuzzing.distributed import DistributedSession

        session = DistributedSession(options, run_options, reports, address=ray, redis=redis)
    sys.stderr.write(f"seed {options.seed}, profile {profile}, {session.folder}\n")
    result = session.run()
    console = make_console(stderr=as_json)
    _print_summary(console, result, coverage)
    if as_json:
        print(json.dumps(_as_json(options, result)))
    raise typer.Exit(_exit_code(result))


def _exit_code(result: SessionResult) -> int:
    if result.interrupted:
        return INTERRUPTED
    if result.findings:
        return 1
    return 2 if Verdict.ERROR in result.verdicts or not result.cases else 0


def _print_summary(console: Console, result: SessionResult, coverage: bool) -> None:
    table = Table("adapter", "cases", "edges", "pairs", box=box.SIMPLE_HEAD, pad_edge=False)
    for name, count in result.coverage.items():
        table.add_row(name, str(count.cases), f"{count.reached}/{len(count.within)}", str(len(count.pairs)))
    console.print(table)
    runs = result.cases + result.shrink_runs
    verdicts = ", ".join(f"{count} {verdict}" for verdict, count in sorted(result.verdicts.items()))
    console.print(
        f"{result.cases} cases ({verdicts or 'none'}) and {result.shrink_runs} runs of shrinking in "
        f"{result.seconds:.0f} s, {runs / max(result.seconds, 1e-6):.1f} runs per second",
        markup=False,
        highlight=False,
    )
    if coverage:
        _print_coverage(console, result)
    for number, (finding, folder) in enumerate(zip(result.findings, result.folders, strict=True), 1):
        record = finding.record
        console.print(
            f"\n{number}. {record.verdict} {record.adapter}  {record.case.name}", markup=False, style="bold red"
        )
        console.print(f"  {record.reason}", markup=False, highlight=False)
        if record.stability not in (None, Stability.DETERMINISTIC):
            console.print(f"  run three times: {record.stability}", markup=False, highlight=False)
        for line in finding.explanation.lines:
            console.print(f"  {line}", markup=False, highlight=False)
        console.print(f"  after {finding.examples} cases; shows with: {finding.edge}", markup=False, highlight=False)
        console.print(f"  {folder}", markup=False, highlight=False, soft_wrap=True)
    found = f"{len(result.findings)} finding{'' if len(result.findings) == 1 else 's'}"
    console.print(f"\n{found}: {result.folder}", markup=False, highlight=False, soft_wrap=True)


def _print_coverage(console: Console, result: SessionResult) -> None:
    """Edges reached least, edges missed, and the pairs met once."""
    for name, count in result.coverage.items():
        rare = sorted((n, edge) for edge, n in count.single.items())[:RARE]
        once = sum(n == 1 for n in count.pairs.values())
        console.print(f"\n{name}: {count.reached} of {len(count.within)} edges, {len(count.pairs)} pairs", style="bold")
        for what, told in (
            ("missed", ", ".join(count.missed) or "none"),
            ("least often", ", ".join(f"{edge} ({n})" for n, edge in rare)),
            ("pairs met once", str(once)),
            ("outside what the adapter or the profile allows", ", ".join(sorted(count.beyond)) or "none"),
        ):
            console.print(f"  {what}: {told}", markup=False, highlight=False)


def _as_json(options: SessionOptions, result: SessionResult) -> dict[str, object]:
    return {
        "session": str(result.folder),
        "seed": options.seed,
        "cases": result.cases,
        "shrink_runs": result.shrink_runs,
        "seconds": round(result.seconds, 1),
        "verdicts": {str(verdict): count for verdict, count in result.verdicts.items()},
        "interrupted": result.interrupted,
        "findings": [
            {
                "folder": str(folder),
                "adapter": finding.record.adapter,
                "verdict": str(finding.record.verdict),
                "fault": finding.explanation.fault,
                "class": finding.explanation.fault_class,
                "kind": finding.kind,
                "edge": finding.edge,
                "case": finding.record.case.to_json(),
                "explanation": list(finding.explanation.lines),
                "examples": finding.examples,
                "shrink_runs": finding.shrink_runs,
            }
            for finding, folder in zip(result.findings, result.folders, strict=True)
        ],
        "coverage": {
            name: {"edges": count.reached, "of": len(count.within), "pairs": len(count.pairs)}
            for name, count in result.coverage.items()
        },
    }
