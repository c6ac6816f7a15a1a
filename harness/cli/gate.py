"""`attn-harness gate`: run a suite, or read records, and compare with a baseline."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harness.cli.interrupts import nothing_to_keep
from harness.cli.unbegun import removed_if_unbegun
from harness.environment import installed_versions
from harness.errors import UsageError
from harness.gate.baseline import Baseline, baseline_from_records, baseline_path, read_baseline, write_baseline
from harness.gate.comparison import Comparison, GateResult, compare
from harness.gate.growth import DEFAULT_FACTOR
from harness.gate.ledger import read_ledger
from harness.gate.scope import Scope, scope_of_jobs, scope_of_records
from harness.gate.selection import read_fault_table
from harness.gate.sharding import parse_shard
from harness.gate.summary import GateText, gate_json, gate_lines
from harness.record import Record, RecordWriter
from harness.record_files import RecordSet, load_records, new_record_path, write_case, write_plan
from harness.report.github import tell_github

if TYPE_CHECKING:
    from harness.running.options import Job

NOT_RUN = 2

# What runs kernels is imported where it is used: comparing records should not wait for torch.


@dataclass(frozen=True, slots=True)
class Choice:
    """The suites and case files asked for, and what their cases must have in their name or id."""

    suites: tuple[str, ...]
    files: tuple[Path, ...]
    keyword: str | None = None

    @property
    def scoped(self) -> tuple[str, ...]:
        """The suites whose part of the baseline is judged; () is all of it, as with case files, which have none."""
        return () if self.files else self.suites


@dataclass(frozen=True, slots=True)
class RunSettings:
    """How the gate runs kernels, when it does."""

    workers: int | None
    workers_per_gpu: int | None
    python: str
    evidence: str
    time_limit: float
    repeat: int


def gate(
    baseline: Annotated[
        str,
        typer.Option(
            "--baseline",
            "-b",
            help="Name of a baseline (REPORTS/baselines/NAME.jsonl), or the path of its file: what has a / or ends "
            "with .jsonl is a path, and --update writes there.",
        ),
    ],
    suite: Annotated[list[str] | None, typer.Option("--suite", "-s", help="Suite to run; repeatable.")] = None,
    cases: Annotated[list[Path] | None, typer.Option("--cases", help="A case file or a folder of them.")] = None,
    keyword: Annotated[str | None, typer.Option("-k", help="Only cases with this in their name or id.")] = None,
    records: Annotated[
        list[Path] | None,
        typer.Option("--records", help="Judge this file (or folder) of records instead of running; repeatable."),
    ] = None,
    adapter: Annotated[
        list[str] | None,
        typer.Option("--adapter", "-a", help="Adapter name, glob, or file.py:Class (default: the baseline's)."),
    ] = None,
    minutes: Annotated[
        float | None, typer.Option("--minutes", "-m", help="Run what catches most per second first, this long.")
    ] = None,
    shard: Annotated[str | None, typer.Option("--shard", help="i/n: run part i of n, balanced by seconds.")] = None,
    update: Annotated[bool, typer.Option("--update", help="Write the baseline, and say what that accepts.")] = False,
    accept_failures: Annotated[
        bool, typer.Option("--accept-failures", help="With --update: failures that the ledger does not know, too.")
    ] = False,
    other_device: Annotated[
        bool, typer.Option("--other-device", help="With --update: results of another device than the baseline's, too.")
    ] = False,
    factor: Annotated[
        float, typer.Option("--factor", help="An error may grow by this many of the baseline's own spreads.")
    ] = DEFAULT_FACTOR,
    ledger: Annotated[
        Path | None, typer.Option("--ledger", help="Known failures (default: REPORTS/known_failures.toml).")
    ] = None,
    fault_table: Annotated[
        Path | None, typer.Option("--fault-table", help="What cases catch (default: REPORTS/fault_table.json).")
    ] = None,
    launch_known_crashes: Annotated[
        bool, typer.Option("--launch-known-crashes", help="Run what the ledger says crashes or hangs, too.")
    ] = False,
    repeat: Annotated[int, typer.Option("--repeat", help="Run each case this often: --update learns the spread.")] = 1,
    evidence: Annotated[
        str, typer.Option("--evidence", help="default, certificate, metamorphic, all, bound or atol.")
    ] = "default",
    time_limit: Annotated[float, typer.Option("--time-limit", help="Seconds for one case, compiling apart.")] = 120.0,
    workers: Annotated[int | None, typer.Option("--workers", help="Worker processes.")] = None,
    workers_per_gpu: Annotated[
        int | None,
        typer.Option(
            "--workers-per-gpu", help="Workers that share one GPU (default: as many as are worth it, 8 at most)."
        ),
    ] = None,
    python: Annotated[str, typer.Option("--python", help="Interpreter to run kernels in.")] = sys.executable,
    reports: Annotated[Path, typer.Option("--reports", help="Folder for records, baselines and the ledger.")] = Path(
        "reports"
    ),
    as_json: Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")] = False,
) -> None:
    """Compare with a baseline before a backend change is merged.

    Fails (exit code 1) on a new non-PASS, on a case that is no longer run, on an error that grew, on
    evidence that changed, and on a known failure that no longer fails; with --update, on a failure that neither the
    ledger knows nor --accept-failures accepts. Exit code 2 if not all could be run, and nothing of that was found.

    Examples:

    - `attn-harness gate --suite quick --baseline cpu --adapter torch-sdpa --update`
    - `attn-harness gate --suite quick --baseline cpu`
    - `attn-harness gate --suite smoke --baseline my-h200 --adapter 'flashinfer-*' --repeat 3 --update`
    - `attn-harness gate --suite smoke --baseline my-h200`
    - `attn-harness gate --suite smoke --baseline my-h200 --minutes 3`
    - `attn-harness gate --suite smoke --baseline my-h200 -k decode`
    - `attn-harness gate --baseline my-h200 --records reports/run-20260914-101500-77.jsonl`
    """
    _refuse_contradictions(bool(suite or cases), bool(records), minutes, shard, factor, repeat)
    if accept_failures and not update:
        raise UsageError("--accept-failures goes with --update; failures that are known belong in the ledger.")
    if other_device and not update:
        raise UsageError("--other-device goes with --update; a gate alone says the difference and goes on.")
    if keyword and records:
        raise UsageError("-k chooses what to run; it does not go with --records.")
    for name, file in (("--ledger", ledger), ("--fault-table", fault_table)):
        if file is not None and not file.exists():
            raise UsageError(f"{name} is {file}, and there is no such file.")
    if not baseline:
        raise UsageError("--baseline is empty; give a name, such as that of a GPU, or the path of a .jsonl file.")
    chosen = Choice(tuple(suite or ()), tuple(cases or ()), keyword)
    known = read_ledger(ledger or reports / "known_failures.toml")
    path = baseline_path(reports, baseline)
    old = {} if update and not path.exists() else read_baseline(path)
    patterns = tuple(adapter or ())
    not_run: UsageError | None = None
    part = parse_shard(shard) if shard else None
    if records:
        loaded = load_records(records)
        jobs = _jobs_recorded(chosen, old, loaded) if suite or cases else ()
        scope: Scope[Any] = scope_of_records(loaded, old, jobs, adapters=patterns, suites=chosen.scoped, part=part)
        found = [r for r in loaded.records if scope.wants(r.key, patterns)]
        files = tuple(map(str, records))
    else:
        scope = scope_of_jobs(
            _jobs_to_run(chosen, patterns, old, path, python),
            old,
            adapters=patterns,
            suites=chosen.scoped,
            part=part,
            budget_seconds=None if minutes is None else minutes * 60,
            table=read_fault_table(fault_table or reports / "fault_table.json"),
            ledger=known,
            versions=installed_versions(),
            launch_known_crashes=launch_known_crashes,
            keyword=keyword,
        )
        settings = RunSettings(workers, workers_per_gpu, python, evidence, time_limit, repeat)
        written, found, not_run = _run(scope, settings, reports, part)
        files = (str(written),)
    missing = scope.missing({record.key for record in found})
    if not found and not scope.not_launched and not missing and not scope.expected:
        raise UsageError("there is nothing to judge: no records, and nothing in the baseline for this choice.")
    if update and not other_device:
        _refuse_other_device(found, old, path, files)
    result = compare(
        Comparison(found, old, scope.expected, missing, scope.not_launched, known, installed_versions(), factor)
    )
    text = GateText(
        baseline=str(path),
        records=files,
        replay=_leave_cases(result, reports),
        entries=len(old),
        left_out=len(scope.left_out),
        planned=len(scope.names),
        unanswered=len(missing),
        update=update,
        not_run=str(not_run or ""),
        refused=len(result.unknown_failures) if update and not accept_failures else 0,
    )
    if update:
        if not_run is not None:
            raise not_run
        new = _updated(old, found, scope, missing)
        if not text.refused:
            write_baseline(path, new)
    code = _exit_code(result, text)
    _say(result, text, code, as_json)
    if not_run is not None and code == NOT_RUN:
        raise not_run
    raise typer.Exit(code)


def _exit_code(result: GateResult, text: GateText) -> int:
    """1 for what got worse, which counts for more than what could not be run."""
    if text.update:
        return 1 if text.refused else 0
    if text.not_run and not result.findings:
        return NOT_RUN
    return 0 if result.passed else 1


def _refuse_contradictions(
    has_suite: bool,
    has_records: bool,
    minutes: float | None,
    shard: str | None,
    factor: float,
    repeat: int,
) -> None:
    if not has_suite and not has_records:
        raise UsageError("say what to judge: --suite NAME runs a suite, --records FILE reads a run's records.")
    if minutes is not None and (has_records or not minutes > 0):
        raise UsageError("--minutes chooses what to run: give a positive number, and no --records.")
    if shard and not has_suite:
        raise UsageError("--shard splits a suite; name it with --suite (or --cases).")
    if not factor > 0:
        raise UsageError(f"--factor is {factor}; give a positive number.")
    if repeat < 1:
        raise UsageError(f"--repeat is {repeat}; give 1 or more.")


def _refuse_other_device(found: list[Record], old: Baseline, path: Path, files: tuple[str, ...]) -> None:
    """Kernels differ by architecture: an entry is made again where it was made, and a new one where the others were."""
    devices = {entry.device for entry in old.values()} - {""}
    for record in found:
        entry = old.get(record.key)
        known = {entry.device} if entry is not None and entry.device else devices
        if record.device and known and record.device not in known:
            raise UsageError(
                f"{path} is of {' and '.join(sorted(known))} and these records are of {record.device}, so nothing was "
                "written: give this device a baseline of its own with --baseline, or add --other-device to mix them; "
                f"--records {files[0]} in place of the suite spares the run."
            )


def _jobs_to_run(chosen: Choice, patterns: tuple[str, ...], baseline: Baseline, path: Path, python: str) -> list[Job]:
    """The suite's jobs, for the adapters named, or for those of the baseline."""
    with nothing_to_keep():  # importing torch takes seconds
        from harness.cli.selection import make_jobs, select_adapters, select_cases
        from harness.running.elsewhere import entries_for

    adapters = patterns or tuple(sorted({entry.adapter for entry in baseline.values()}))
    if not adapters:
        raise UsageError("a new baseline needs --adapter NAME (repeatable, globs): it has none of its own yet.")
    cases = select_cases(chosen.suites, chosen.files, chosen.keyword)
    entries = entries_for(python)
    if patterns:
        return make_jobs(select_adapters(patterns, entries), cases)
    selected: list[str] = []
    cannot: list[UsageError] = []
    for name in adapters:
        try:
            selected += select_adapters([name], entries)
        except UsageError as why:
            cannot.append(why)
    if cannot:
        more = f" (and {len(cannot) - 1} more of its {len(adapters)} adapters cannot)" if len(cannot) > 1 else ""
        raise UsageError(
            f"baseline {path} asks for an adapter that this run cannot have: {str(cannot[0]).rstrip('.')}{more}; "
            "--adapter NAME narrows the run, and what is judged, to what can run here."
        )
    return make_jobs(selected, cases)


def _jobs_recorded(chosen: Choice, baseline: Baseline, loaded: RecordSet) -> list[Job]:
    """The suite's jobs for every adapter that has records or a baseline, whether or not it can run here."""
    from harness.cli.selection import make_jobs, select_cases

    adapters = {entry.adapter for entry in baseline.values()} | {record.adapter for record in loaded.records}
    return make_jobs(sorted(adapters), select_cases(chosen.suites, chosen.files))


def _run(
    scope: Scope[Job], settings: RunSettings, reports: Path, part: tuple[int, int] | None
) -> tuple[Path, list[Record], UsageError | None]:
    """Run the scope's jobs; their records lie in a file of this run's own. And why not all were run, if so."""
    from harness.cli.outside import adapter_name
    from harness.cli.progress import RunProgress
    from harness.loading import is_file_spec
    from harness.running.options import RunOptions
    from harness.running.runner import run_jobs

    options = RunOptions(evidence=settings.evidence, time_limit=settings.time_limit)
    jobs = list(scope.jobs) * settings.repeat
    path = new_record_path(reports, "gate")
    write_plan(path, scope.jobs, left_out=(*scope.left_out, *scope.not_launched), shard=part)
    # A record of an outside adapter may carry its name; the plan and the baseline know it by what was typed.
    typed = {adapter_name(spec): spec for spec in {job.adapter for job in scope.jobs} if is_file_spec(spec)}
    found: list[Record] = []
    writer = RecordWriter(path)
    problem: UsageError | None = None
    with removed_if_unbegun(path), RunProgress(len(jobs)) as progress:

        def on_record(record: Record) -> None:
            named = record.replace(adapter=typed.get(record.adapter, record.adapter))
            writer.write(named)
            found.append(named)
            progress.add(named)

        try:
            run_jobs(
                jobs,
                options,
                on_record,
                workers=settings.workers,
                workers_per_gpu=settings.workers_per_gpu,
                python=settings.python,
            )
        except UsageError as why:
            if not found:
                raise
            problem = why
        finally:
            writer.close()
    return path, found, problem


def _updated(old: Baseline, found: list[Record], scope: Scope[Any], missing: dict[tuple[str, str], str]) -> Baseline:
    """The old baseline with this run's part of it made new."""
    if missing:
        raise UsageError(f"{len(missing)} planned cases have no record; a baseline is made from a run that ended.")
    if not found:
        raise UsageError("there is no record to make a baseline of.")
    kept = {key: entry for key, entry in old.items() if key not in scope.expected or key in scope.not_launched}
    return kept | baseline_from_records(found)


def _leave_cases(result: GateResult, reports: Path) -> dict[str, str]:
    """case id -> file, for the cases of changes that have a record."""
    cases = {change.case_id: change.record.case for change in result.changes if change.record is not None}
    return {case_id: str(write_case(case, reports)) for case_id, case in cases.items()}


def _say(result: GateResult, text: GateText, code: int, as_json: bool) -> None:
    notes = tell_github(result, text)
    if as_json:
        typer.echo(json.dumps(gate_json(result, text, code)))
    else:
        for line in gate_lines(result, text):
            typer.echo(line)
    for line in notes:
        typer.echo(line, err=as_json)  # a runner reads workflow commands from either stream
