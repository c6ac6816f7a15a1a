"""`attn-harness doctor`: what is here, which adapters can run, and why the others cannot."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from cases.errors import CaseError
from cases.schema import AttentionCase, Request
from cases.suites import load_suite
from harness.adapter_check import protocol_problems, rule_problem
from harness.adapters import registry
from harness.adapters.sglang.report import sglang_report
from harness.adapters.vllm.report import vllm_report
from harness.cli import outside
from harness.cli.apart import AdapterDied, Answer, answer_apart
from harness.cli.consoles import make_console
from harness.cli.selection import default_here
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

    - `attn-harness doctor`
    - `attn-harness doctor --adapter my_kernel.py:MyKernel`
    - `attn-harness doctor --prebuild smoke --arch 9.0a --export smoke.tar.xz`
    - `attn-harness doctor --import smoke.tar.xz`
    """
    try:
        code = _doctor(tuple(adapter or ()), suites, arch, jobs, export, parcel, as_json)
    except (UsageError, CaseError) as problem:
        if as_json:  # who reads the JSON is told too
            print(json.dumps({"error": str(problem)}))
        raise
    raise typer.Exit(code)


def _doctor(
    adapters: tuple[str, ...],
    suites: list[str] | None,
    arch: str | None,
    jobs: int | None,
    export: Path | None,
    parcel: Path | None,
    as_json: bool,
) -> int:
    if not suites and (arch is not None or jobs is not None or export is not None):
        raise UsageError("--arch, --jobs and --export go with --prebuild SUITE.")
    if suites and parcel is not None:
        raise UsageError("--import lays out what --prebuild built elsewhere; use one of them.")
    if suites or parcel is not None:
        from harness.prebuild.command import Wish, import_parcel, prebuild

        if parcel is not None:
            return import_parcel(parcel, as_json=as_json)
        cases = tuple(case for suite in suites or () for case in load_suite(suite))
        return prebuild(Wish(cases, adapters, arch, jobs, export), as_json=as_json)
    if adapters:
        checks = []
        for spec in adapters:
            checks.append(_check_one(spec))
            if not as_json:
                _print_check(checks[-1])
        if as_json:
            print(json.dumps({"checked": [dataclasses.asdict(check) for check in checks]}))
        return max(check.code for check in checks)
    facts: dict[str, Any] = {
        "versions": installed_versions(),
        "gpus": list(gpu_ids()),
        "cores": core_count(),
        "adapters": [
            {
                "name": e.name,
                "runs": e.why_not is None,
                "why_not": e.why_not,
                "default": e.why_not is None and default_here(e, bool(gpu_ids())),
            }
            for e in registry.available()
        ],
        "sglang": sglang_report(has_gpu=bool(gpu_ids()), fa3_missing=registry.missing_flash_attention("fa3")),
        "vllm": vllm_report(has_gpu=bool(gpu_ids())),
    }
    if as_json:
        print(json.dumps(facts))
    else:
        _print_facts(make_console(), facts)
    return 0 if any(a["runs"] for a in facts["adapters"]) else 2


def _print_facts(console: Console, facts: dict[str, Any]) -> None:
    console.print("  ".join(f"{name} {version}" for name, version in facts["versions"].items()), highlight=False)
    gpus = f"{len(facts['gpus'])} ({', '.join(facts['gpus'])})" if facts["gpus"] else "none"
    console.print(f"GPUs: {gpus}; cores: {facts['cores']}\n", highlight=False)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("adapter", "runs here", "why not"):
        table.add_column(heading, overflow="fold")  # a narrow terminal breaks a name, and cuts nothing off it
    for entry in facts["adapters"]:
        table.add_row(entry["name"], "yes" if entry["runs"] else "no", entry["why_not"] or "")
    console.print(table)
    others = [entry["name"] for entry in facts["adapters"] if entry["runs"] and not entry["default"]]
    if others:
        told = f"A run leaves these out unless --adapter names them: {', '.join(others)}."
        console.print(told, markup=False, highlight=False)
    for sentence in (*facts["sglang"], *facts["vllm"]):
        console.print(sentence, markup=False, highlight=False)


@dataclass(frozen=True, slots=True)
class Check:
    """An adapter's problems with the protocol; where it has none, what one small case gave."""

    adapter: str
    problems: list[str]
    case: str | None = None
    verdict: Verdict | None = None
    reason: str = ""

    @property
    def code(self) -> int:
        """0 fine, 1 wrong answers, 2 not an adapter."""
        if self.verdict is None or self.verdict is Verdict.ERROR:
            return 2
        return 1 if self.verdict.is_finding else 0


def _check_one(spec: str) -> Check:
    """Protocol first; then one small case in a worker. Raises UsageError where there is no such adapter."""
    if problems := _problems(spec):
        return Check(spec, problems)
    worker = make_worker(0)
    try:
        record = worker.examine(Job(PROBE, spec), RunOptions(rerun=False))
    finally:
        worker.stop()
    return Check(spec, [], PROBE.name, record.verdict, record.reason)


def _problems(spec: str) -> list[str]:
    """What is wrong with the adapter, asked in a process of its own, which an outside file may end."""

    def ask() -> Answer:
        adapter = registry.load_adapter(spec)
        problems = protocol_problems(adapter)
        if not problems and (odd := rule_problem(adapter, PROBE)):
            problems = [odd]
        return Answer(json.dumps(problems), 0)

    try:
        problems: list[str] = json.loads(answer_apart(ask, outside.LOAD_LIMIT).text)
    except AdapterDied as death:
        return [f"cannot be loaded: {death}"]
    return problems


def _print_check(check: Check) -> None:
    console = Console(highlight=False, soft_wrap=True)
    for problem in check.problems:
        console.print(f"{check.adapter} {problem}.", markup=False)
    if not check.problems:
        console.print(f"{check.adapter} follows the adapter protocol.", markup=False)
        console.print(f"one small case ({check.case}): {check.verdict} {check.reason}".rstrip(), markup=False)
