"""`attn-harness faults`: how sensitive a suite is, what a fuzzing session costs, how good the diagnosis is."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from cases.schema import AttentionCase
from harness.cli.consoles import make_console
from harness.cli.interrupts import INTERRUPTED
from harness.cli.outside import check_fault
from harness.cli.selection import select_adapters, select_cases
from harness.environment import core_count, gpu_ids
from harness.errors import UsageError
from harness.faults.catalogue import CATALOGUE, CONTROLS
from harness.faults.coverage import ROWS
from harness.faults.registry import known_faults, load_fault
from harness.faults.sensitivity import Sensitivity, measure_all, rungs
from harness.faults.shots import KINDS, emulated_adapters
from harness.loading import is_file_spec


def faults(
    suite: Annotated[list[str] | None, typer.Option("--suite", "-s", help="Suite name; repeatable.")] = None,
    adapter: Annotated[
        list[str] | None, typer.Option("--adapter", "-a", help="Adapter name or glob (default: the emulated ones).")
    ] = None,
    fault: Annotated[
        list[str] | None, typer.Option("--fault", help="Only this fault, a+b, or file.py:Name; repeatable.")
    ] = None,
    fuzz: Annotated[
        int | None, typer.Option("--fuzz", help="Measure instead how many generated cases, at most N, catch each.")
    ] = None,
    blame: Annotated[bool, typer.Option("--blame", help="Measure how often the diagnosis names each fault.")] = False,
    processes: Annotated[
        int | None, typer.Option("--processes", min=1, help="Processes (default: the cores; 1 with a GPU).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """Plant every known fault and say which evidence catches it, and which no case can see.

    Exit code 1 if a fault that a case can show is missed, or a control is reported; 2 if nothing could be planted;
    130 after Ctrl-C, with what was measured by then.

    Examples:

    - `attn-harness faults --suite smoke`
    - `attn-harness faults --suite quick --adapter flash-attn-3@emulated --fault window-ignored`
    - `attn-harness faults --fuzz 50 --fault window-ignored`
    - `attn-harness faults --blame --suite quick --fault window-ignored`
    """
    if fuzz is not None and blame:
        raise UsageError("--fuzz and --blame measure different things; give one of them.")
    specs = _specs(fault)
    adapters = tuple(select_adapters(adapter)) if adapter else emulated_adapters()
    real = [name for name in adapters if not name.endswith("@emulated")]
    if real and not fault:
        specs = [spec for spec in specs if load_fault(spec).on_plan is not None]
    count = processes or (1 if real and gpu_ids() else core_count())
    cases = [case for _, case in select_cases(suite or ["smoke"], [])]
    if (fuzz is not None or blame) and not fault:  # controls never end early, and have nothing to be blamed for
        specs = [spec for spec in specs if not load_fault(spec).is_control]
    sofar = _SoFar(len(specs))
    if fuzz is not None:
        raise typer.Exit(_fuzz(specs, fuzz, adapters, count, sofar, as_json))
    if blame:
        raise typer.Exit(_blame(specs, cases, adapters, count, sofar, as_json))
    results = sofar.of(lambda: measure_all(specs, cases, adapters, processes=count, on_result=sofar.add))
    if as_json:
        print(json.dumps([dataclasses.asdict(r) | {"as_it_should": r.as_it_should} for r in results]))
    else:
        _print_sensitivity(results, cases)
    if sofar.interrupted:
        raise typer.Exit(INTERRUPTED)
    if not any(r.shots for r in results):
        reasons = {r.blind for r in results if r.blind}
        why = reasons.pop() if len(reasons) == 1 else "none of these faults shows in these cases on these adapters"
        raise UsageError(f"nothing was planted: {why}; choose another suite, adapter or fault.")
    raise typer.Exit(0 if all(r.as_it_should for r in results) else 1)


def _specs(chosen: list[str] | None) -> list[str]:
    if chosen:
        for spec in chosen:
            if is_file_spec(spec):
                check_fault(spec)
            load_fault(spec)  # a bad name is refused before anything runs
        return list(dict.fromkeys(chosen))
    return list(known_faults())


class _SoFar:
    """Results as they come, which Ctrl-C leaves. A line on standard error now and then; a live count on a terminal."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.results: list[Any] = []
        self.interrupted = False

    def add(self, result: Any) -> None:
        self.results.append(result)
        done = len(self.results)
        if sys.stderr.isatty():
            sys.stderr.write(f"\r{done}/{self.total} faults" + ("\n" if done == self.total else ""))
        elif done % 20 == 0 or done == self.total:
            sys.stderr.write(f"{done}/{self.total} faults\n")
        sys.stderr.flush()

    def of(self, measure: Callable[[], list[Any]]) -> list[Any]:
        """All that `measure` gives, or what was added before Ctrl-C; KeyboardInterrupt if that is nothing."""
        try:
            return measure()
        except KeyboardInterrupt:
            if not self.results:
                raise
            self.interrupted = True
            sys.stderr.write(f"\n{len(self.results)} of {self.total} faults were measured before it was interrupted.\n")
            return self.results


# -- sensitivity ---------------------------------------------------------------------------------
def _print_sensitivity(results: Sequence[Sensitivity], cases: Sequence[AttentionCase]) -> None:
    console = make_console(least=120)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("fault", "cases", "caught", *KINDS, "first caught by"):
        table.add_column(column, justify="left" if column in ("fault", "first caught by") else "right")
    for r in (r for r in results if not r.is_control and r.cases):
        first = "" if r.first is None else f"{r.first[1]} {r.first[2].removesuffix('@emulated')}"
        marks = [str(r.fired[kind]) if kind in r.fired else "" for kind in KINDS]
        caught = f"{r.caught}/{r.shots}" if r.caught else Text(f"MISSED 0/{r.shots}", "bold red")
        table.add_row(r.fault, str(r.cases), caught, *marks, first)
    console.print(table)
    _print_ladder(console, results)
    unseen = [r for r in results if not r.is_control and not r.cases]
    if unseen:
        console.print(f"\nno case of the {len(cases)} can see:")
        for r in unseen:
            console.print(f"  {r.fault}: {r.blind}", markup=False, highlight=False)
    controls = [r for r in results if r.is_control]
    if controls:
        fired = [r for r in controls if r.caught]
        shots = sum(r.shots for r in controls)
        console.print(f"\ncontrols: {len(fired)} of {len(controls)} reported, over {shots} runs", highlight=False)
        for r in fired:
            console.print(f"  {r.fault}: {r.fired}, first {r.first}", markup=False, highlight=False)
    covered = sum(bool(row.faults) for row in ROWS)
    console.print(
        f"\n{len(CATALOGUE)} faults and {len(CONTROLS)} controls stand for {covered} of {len(ROWS)} public reports.",
        highlight=False,
    )


def _print_ladder(console: Console, results: Sequence[Sensitivity]) -> None:
    console.print("with no more evidence than:", highlight=False)
    before = 0
    for index, (name, caught, total, share) in enumerate(rungs(results)):
        console.print(f"  {name:<18} {caught:>3} of {total} faults, {share:.1%} of runs", highlight=False)
        if index and caught > before:
            new = [
                r.fault
                for r in results
                if not r.is_control and r.ladder and r.ladder[index] and not r.ladder[index - 1]
            ]
            console.print(f"    needed for: {', '.join(new)}", markup=False, highlight=False)
        before = caught


# -- fuzzing -------------------------------------------------------------------------------------
def _fuzz(
    specs: Sequence[str],
    number: int,
    adapters: Sequence[str],
    processes: int,
    sofar: _SoFar,
    as_json: bool,
) -> int:
    if number < 1:
        raise UsageError(f"--fuzz is {number}; give the most cases to draw, 1 or more.")
    from harness.faults.fuzz_cost import SEEDS, fuzz_costs  # needs hypothesis

    costs = sofar.of(lambda: fuzz_costs(specs, number, adapters, processes=processes, on_result=sofar.add))
    if as_json:
        print(json.dumps([dataclasses.asdict(c) | {"median": c.median} for c in costs]))
    else:
        console = make_console(least=100)
        table = Table("fault", "median cases", "seeds that caught it", box=box.SIMPLE_HEAD, pad_edge=False)
        for cost in sorted((c for c in costs if not c.is_control), key=lambda c: (c.median is None, c.median or 0)):
            median = f"> {number}" if cost.median is None else f"{cost.median:g}"
            table.add_row(cost.fault, median, f"{cost.caught} of {len(cost.drawn)}")
        console.print(table)
        print(f"{SEEDS} seeds of up to {number} cases, drawn for every emulated path at once.")
    if sofar.interrupted:
        return INTERRUPTED
    return 1 if any(c.is_control and c.caught for c in costs) else 0


# -- blame ---------------------------------------------------------------------------------------
def _blame(
    specs: Sequence[str],
    cases: Sequence[AttentionCase],
    adapters: Sequence[str],
    processes: int,
    sofar: _SoFar,
    as_json: bool,
) -> int:
    from harness.diagnosis.blame import blame_all

    told = sofar.of(lambda: blame_all(specs, cases, adapters, processes=processes, on_result=sofar.add))
    if sofar.interrupted:
        told = [blame for of_fault in told for blame in of_fault]
    elif not told:
        raise UsageError("nothing was planted that an output shows; choose another suite, adapter or fault.")
    if as_json:
        print(json.dumps([dataclasses.asdict(b) for b in told]))
        return INTERRUPTED if sofar.interrupted else 0
    console = make_console(least=140)
    table = Table("fault", "adapter", "first explanation", "", box=box.SIMPLE_HEAD, pad_edge=False)
    for b in told:
        word = "named" if b.named else "equal here" if b.equal else "class" if b.classed else Text("missed", "bold red")
        table.add_row(b.fault, b.adapter.removesuffix("@emulated"), b.said or f"none ({b.said_class})", word)
    console.print(table)
    count = max(1, len(told))
    print(
        f"{len(told)} outputs of {len({b.fault for b in told})} faults: "
        f"named {sum(b.named for b in told) / count:.1%}, "
        f"named or equal on that case {sum(b.right for b in told) / count:.1%}, "
        f"class right (or equal) {sum(b.classed for b in told) / count:.1%}, "
        f"the very class {sum(b.said_class == b.fault_class for b in told) / count:.1%}"
    )
    return INTERRUPTED if sofar.interrupted else 0
