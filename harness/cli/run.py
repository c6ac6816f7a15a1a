"""`attn-harness run`: cases through adapters, judged and recorded."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from harness.cli.consoles import make_console
from harness.cli.progress import RunProgress
from harness.cli.selection import DEFAULT_SUITES, make_jobs, say_not_run, select_adapters, select_cases
from harness.cli.summary import exit_code, print_summary
from harness.cli.unbegun import removed_if_unbegun
from harness.errors import UsageError
from harness.record import Record, RecordWriter
from harness.record_files import new_record_path, write_case, write_plan
from harness.running.elsewhere import entries_for
from harness.running.options import Job, RunOptions
from harness.running.runner import run_jobs

AdapterOption = Annotated[
    list[str] | None,
    typer.Option(
        "--adapter",
        "-a",
        help="Adapter name, glob, or path/to/file.py:ClassName; repeatable (default: every library on a GPU; without "
        "one the emulated adapters and torch-sdpa).",
    ),
]
ReportsOption = Annotated[Path, typer.Option("--reports", help="Folder for records.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the records as JSON lines instead of a table.")]
FaultOption = Annotated[
    str | None, typer.Option("--fault", help="Put this named fault (or file.py:Name) into the adapter.")
]
EvidenceOption = Annotated[
    str,
    typer.Option(
        "--evidence",
        help="default, certificate (all of them), metamorphic (pages moved, requests reordered or alone, extend in "
        "two chunks, other poison, the same again), all, bound or atol.",
    ),
]
RepeatsOption = Annotated[
    int, typer.Option("--repeats", help="Runs on the same inputs that must give the same bits (metamorphic evidence).")
]
AtolOption = Annotated[
    float | None, typer.Option("--atol", help="A flat max-abs-diff that must hold too (default: reported only).")
]
VerboseOption = Annotated[
    bool, typer.Option("--verbose", "-v", help="Name every case that failed or is not supported, not groups of them.")
]
PythonOption = Annotated[str, typer.Option("--python", help="Interpreter of the environment to run kernels in.")]


def run(
    suite: Annotated[
        list[str] | None,
        typer.Option("--suite", "-s", help=f"Suite name; repeatable (default: {' and '.join(DEFAULT_SUITES)})."),
    ] = None,
    adapter: AdapterOption = None,
    cases: Annotated[list[Path] | None, typer.Option("--cases", help="A case file or a folder of them.")] = None,
    keyword: Annotated[str | None, typer.Option("-k", help="Only cases with this in their name or id.")] = None,
    fault: FaultOption = None,
    evidence: EvidenceOption = "default",
    atol: AtolOption = None,
    repeats: RepeatsOption = 20,
    workers: Annotated[int | None, typer.Option(help="Worker processes (without a GPU one per core).")] = None,
    workers_per_gpu: Annotated[
        int | None, typer.Option(help="Workers that share one GPU (default: as many as are worth it, 8 at most).")
    ] = None,
    time_limit: Annotated[float, typer.Option(help="Seconds for one case, compiling apart.")] = 120.0,
    python: PythonOption = sys.executable,
    reports: ReportsOption = Path("reports"),
    verbose: VerboseOption = False,
    as_json: JsonOption = False,
) -> None:
    """Run cases through adapters and judge every output row.

    Without arguments this is the main job: suites `smoke` and `seeds` on the default adapters.

    Examples:

    - `attn-harness run --suite quick --adapter torch-sdpa`
    - `attn-harness run --suite seeds --adapter 'flashinfer-*'`
    - `attn-harness run --suite quick --adapter my_kernel.py:MyKernel --evidence metamorphic`
    - `attn-harness run --suite quick --adapter flash-attn-3@emulated --fault window-one-too-wide`
    """
    # A planted fault needs no second and third run to be believed.
    options = RunOptions(
        evidence=evidence, atol=atol, fault=fault, time_limit=time_limit, rerun=fault is None, repeats=repeats
    )
    chosen = select_cases(suite or (), cases or (), keyword)
    entries = entries_for(python)
    jobs = make_jobs(select_adapters(adapter or (), entries), chosen)
    say_not_run(adapter or (), entries)
    records = run_and_record(
        jobs,
        options,
        reports,
        workers=workers,
        workers_per_gpu=workers_per_gpu,
        python=python,
        as_json=as_json,
        verbose=verbose,
    )
    raise typer.Exit(exit_code(records))


def run_and_record(
    jobs: list[Job],
    options: RunOptions,
    reports: Path,
    *,
    workers: int | None = None,
    workers_per_gpu: int | None = None,
    python: str = sys.executable,
    as_json: bool = False,
    verbose: bool = False,
) -> list[Record]:
    """Run jobs with a progress display, append each record as it is made, and print the summary.

    Raises UsageError where not all could be run, unless there is a finding, which counts for more.
    """
    path = new_record_path(reports, "run")
    write_plan(path, jobs)
    writer = RecordWriter(path)
    records: list[Record] = []
    problem: UsageError | None = None
    with removed_if_unbegun(path), RunProgress(len(jobs)) as progress:

        def on_record(record: Record) -> None:
            writer.write(record)
            records.append(record)
            progress.add(record)
            if as_json:
                print(json.dumps(record.to_json()), flush=True)

        try:
            run_jobs(jobs, options, on_record, workers=workers, workers_per_gpu=workers_per_gpu, python=python)
        except UsageError as why:
            if not records:
                raise
            problem = why
        except KeyboardInterrupt:
            if records:
                progress.tell(f"{len(records)} of {len(jobs)} cases are judged; records: {path}")
            raise
        finally:
            writer.close()
    console = make_console(stderr=as_json)
    order = {(job.case.id, job.adapter): at for at, job in enumerate(jobs)}
    records.sort(key=lambda r: order.get((r.case.id, r.adapter), len(order)))
    print_summary(console, records, leave_cases(records, reports), verbose=verbose)
    console.print(f"\nrecords: {path}", markup=False, highlight=False)
    if problem is not None:
        if not any(record.verdict.is_finding for record in records):
            raise problem
        console.print(f"\nnot all was run: {problem}", markup=False, highlight=False, style="bold red")
    return records


def leave_cases(records: list[Record], reports: Path) -> dict[str, str]:
    """Write each finding's case to reports/failures/ID.json, ready to be replayed or mailed."""
    files: dict[str, str] = {}
    for record in records:
        if record.verdict.is_finding and record.case.id not in files:
            files[record.case.id] = str(write_case(record.case, reports))
    return files
