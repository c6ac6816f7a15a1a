"""Measuring the fuzzer on emulated kernels: `python -m harness.fuzzing.study faults|several|clean|table`.

Every measurement is a line of a JSONL file, and what is there is not measured again, so a study may be
stopped and started at will. Kernels run in this process: with a worker's hop, half of the time would be the hop.

    faults    cases until each of 20 planted faults shows, and how small it gets; against uniform lengths and a grid
    several   four faults in one adapter, one session of 3000 cases
    clean     20,000 cases over the adapters as they are: every failure would be a false alarm
    target    the first again, with Hypothesis climbing towards larger error over bound
    table     what the file says
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from cases.draw_limits import find_profile
from cases.schema import AttentionCase
from harness.diagnosis.explaining import Explanation
from harness.faults.registry import load_fault
from harness.faults.shots import Range, emulated_adapters
from harness.fuzzing.baselines import grid_cases, uniform_cases
from harness.fuzzing.drawing import cases_for
from harness.fuzzing.engine import Engine
from harness.fuzzing.engine_options import EngineOptions
from harness.fuzzing.explaining import Groups
from harness.fuzzing.finding import Finding
from harness.fuzzing.kernels import LocalKernels
from harness.fuzzing.limits import draw_limits
from harness.record import Record
from harness.running.options import RunOptions

FOUND_WITHIN = 300
SEEDS = 10
PROFILE = "quick"

# Twenty faults, all fourteen classes, each in a path that it makes sense in.
STUDIED = (
    ("window-one-too-wide", "flashinfer-swa-merge@emulated"),
    ("prefix-leg-mask-missing", "flashinfer-swa-merge@emulated"),
    ("decode-window-edge-tile-unmasked", "flash-attn-3@emulated"),
    ("draft-extend-prefix-only", "flash-attn-4@emulated"),
    ("last-partial-page-missing", "flashinfer-paged-fa2@emulated"),
    ("graph-lengths-of-capture", "flash-attn-4@emulated"),
    ("lengths-of-neighbour", "flash-attn-3@emulated"),
    ("idle-request-overwrites-next-row", "flash-attn-2@emulated"),
    ("empty-row-keeps-neighbours-lse", "flashinfer-swa-merge@emulated"),
    ("page-tail-attended", "flash-attn-4@emulated"),
    ("surplus-page-on-page-edge", "flashinfer-paged-fa3@emulated"),
    ("lse-of-last-split", "flash-attn-3@emulated"),
    ("merge-ignores-lse", "flashinfer-swa-merge@emulated"),
    ("merge-in-other-base", "flashinfer-swa-merge@emulated"),
    ("page-offset-wraps-early", "flash-attn-4@emulated"),
    ("page-list-sorted", "flashinfer-paged-fa2@emulated"),
    ("page-offset-wraps-at-128", "flashinfer-paged-fa2@emulated"),
    ("mask-of-first-request-for-all", "flashinfer-swa-merge@emulated"),
    ("sink-in-base-2", "flash-attn-4@emulated"),
    ("warp-reads-old-rows", "flash-attn-3@emulated"),
)
FOUR = ("window-one-too-wide", "last-partial-page-missing", "softcap-ignored", "graph-lengths-of-capture")
FOUR_IN = "flash-attn-4@emulated"
SESSION = 3000
CLEAN = 20_000
CHUNK = 250


class Ledger:
    """Rows of a JSONL file by their key; what is measured is appended at once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        self.rows: list[dict[str, Any]] = [json.loads(line) for line in lines if line.endswith("}")]

    def has(self, **key: Any) -> bool:
        return any(all(row.get(name) == value for name, value in key.items()) for row in self.rows)

    def add(self, **row: Any) -> None:
        self.rows.append(row)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def of(self, study: str) -> list[dict[str, Any]]:
        return [row for row in self.rows if row["study"] == study]


class _Quick(LocalKernels):
    """Finds and shrinks; does not explain."""

    def explain(
        self, record: Record, witnesses: Sequence[Record], known: Groups, options: RunOptions, seconds: float
    ) -> Explanation:
        del record, witnesses, known, options, seconds
        return Explanation(())


class _Silent:
    """A listener that only counts."""

    def __init__(self) -> None:
        self.verdicts: dict[str, int] = {}
        self.shrink_runs = 0

    def on_record(self, record: Record) -> None:
        self.verdicts[str(record.verdict)] = self.verdicts.get(str(record.verdict), 0) + 1

    def on_shrink(self, record: Record) -> None:
        del record
        self.shrink_runs += 1

    def on_finding(self, finding: Finding) -> None:
        """Kept by the engine."""


def engine_for(kernels: LocalKernels, adapter: str, fault: str | None, listener: Any, **options: Any) -> Engine:
    """An engine over kernels in this process."""
    run_options = RunOptions(fault=fault, rerun=False)
    cases = cases_for(kernels.declaration(), PROFILE, kernels.mend)
    made = EngineOptions(adapter, profile=PROFILE, **options)
    return Engine(cases, kernels, made, run_options, listener)


# -- cases until a fault shows ---------------------------------------------------------------------
def study_faults(ledger: Ledger, range_: Range, seeds: int, *, use_target: bool = False) -> Iterator[str]:
    """One row for each (fault, method, seed)."""
    method = "fuzz with target" if use_target else "fuzz"
    for seed, (fault, adapter) in itertools.product(range(seeds), STUDIED):
        key = {"study": "faults", "fault": fault, "adapter": adapter, "seed": seed}
        if not ledger.has(**key, method=method):
            kernels = _Quick(adapter, fault, range_)
            options = {"seed": seed, "examples": FOUND_WITHIN, "most_findings": 1, "use_target": use_target}
            found = engine_for(kernels, adapter, fault, _Silent(), **options).run()
            body: dict[str, Any] = {"examples": None}
            if found:
                case, original = found[0].record.case, found[0].original.case
                body = {
                    "examples": found[0].examples,
                    "tokens": case.total_kv,
                    "original_tokens": original.total_kv,
                    "shrink_runs": found[0].shrink_runs,
                    "case": case.name,
                }
            ledger.add(**key, method=method, **body)
            yield f"{fault} seed {seed}: {body['examples']} cases, {body.get('tokens')} tokens"
        for other, draw in () if use_target else (("uniform", uniform_cases), ("grid", grid_cases)):
            if not ledger.has(**key, method=other):
                kernels = _Quick(adapter, fault, range_)
                limits = draw_limits(kernels.declaration())
                number = _first_failing(kernels, fault, draw(limits, find_profile(PROFILE), seed))
                ledger.add(**key, method=other, examples=number)
                yield f"{fault} seed {seed} {other}: {number} cases"


def _first_failing(kernels: LocalKernels, fault: str, cases: Iterable[AttentionCase]) -> int | None:
    """How many cases that the adapter takes it took, or None."""
    number = 0
    for case in cases:
        mended = kernels.mend(case)
        if mended is None:
            continue
        number += 1
        if kernels.examine(mended, RunOptions(fault=fault, rerun=False)).verdict.is_finding:
            return number
        if number >= FOUND_WITHIN:
            return None
    return None


# -- sessions ------------------------------------------------------------------------------------
def study_several(ledger: Ledger, range_: Range, seeds: int) -> Iterator[str]:
    """One session for each seed, explained."""
    for seed in range(seeds):
        if ledger.has(study="several", seed=seed):
            continue
        fault, silent, start = "+".join(FOUR), _Silent(), time.perf_counter()
        kernels = LocalKernels(FOUR_IN, fault, range_)
        found = engine_for(kernels, FOUR_IN, fault, silent, seed=seed, examples=SESSION).run()
        findings = [
            {
                "fault": f.explanation.fault,
                "case": f.record.case.name,
                "tokens": f.record.case.total_kv,
                "examples": f.examples,
            }
            for f in found
        ]
        seconds = round(time.perf_counter() - start, 1)
        ledger.add(
            study="several", seed=seed, planted=list(FOUR), findings=findings, verdicts=silent.verdicts, seconds=seconds
        )
        yield f"seed {seed}: {[f['fault'] for f in findings]} in {seconds} s"


def study_clean(ledger: Ledger, cases: int) -> Iterator[str]:
    """Chunks of cases, adapter after adapter in turn, until `cases` are there."""
    adapters = emulated_adapters()
    for number in itertools.count():
        if sum(row["cases"] for row in ledger.of("clean")) >= cases:
            return
        adapter, seed = adapters[number % len(adapters)], number // len(adapters)
        if ledger.has(study="clean", adapter=adapter, seed=seed):
            continue
        silent, start, cpu = _Silent(), time.perf_counter(), time.process_time()
        engine = engine_for(_Quick(adapter), adapter, None, silent, seed=1000 + seed, examples=CHUNK)
        found = engine.run()
        ledger.add(
            study="clean",
            adapter=adapter,
            seed=seed,
            cases=engine.examples,
            verdicts=silent.verdicts,
            failing=[f.record.case.to_json() for f in found],
            reasons=[f.record.reason for f in found],
            seconds=round(time.perf_counter() - start, 2),
            cpu_seconds=round(time.process_time() - cpu, 2),
        )
        yield f"{adapter} seed {seed}: {silent.verdicts}"


# -- tables --------------------------------------------------------------------------------------
def median_of(counts: Sequence[int | None]) -> float | None:
    """The median, those that never showed counting as infinity; None if it is that."""
    middle = statistics.median([float("inf") if n is None else n for n in counts])
    return None if middle == float("inf") else middle


def print_tables(ledger: Ledger) -> None:
    """Markdown."""
    rows = ledger.of("faults")
    methods = [m for m in ("fuzz", "fuzz with target", "uniform", "grid") if any(r["method"] == m for r in rows)]
    if rows:
        print(f"| fault | path | {' | '.join(methods)} | shrunk tokens: median, most | smallest known | ratio |")
        print("|---|---|" + "---:|" * (len(methods) + 3))
    for fault, adapter in STUDIED:
        mine = [row for row in rows if row["fault"] == fault]
        if not mine:
            continue
        cells = [_cell([row["examples"] for row in mine if row["method"] == method]) for method in methods]
        tokens = [row["tokens"] for row in mine if row.get("tokens") is not None and row["method"] == "fuzz"]
        known = load_fault(fault).smallest
        smallest = min([*tokens, *([known.total_kv] if known else [])], default=0)
        size = f"{statistics.median(tokens):g}, {max(tokens)}" if tokens else "-"
        ratio = f"{max(tokens) / smallest:.2g}" if tokens else "-"
        path = adapter.removesuffix("@emulated")
        print(f"| {fault} | {path} | {' | '.join(cells)} | {size} | {smallest} | {ratio} |")
    for row in ledger.of("several"):
        named = [finding["fault"] for finding in row["findings"]]
        print(f"\nfour at once, seed {row['seed']}: {len(named)} findings in {row['seconds']} s")
        print(f"  {', '.join(map(str, named))}")
    clean = ledger.of("clean")
    if clean:
        cases, seconds = sum(row["cases"] for row in clean), sum(row["seconds"] for row in clean)
        cpu = sum(row["cpu_seconds"] for row in clean)
        failing = sum(len(row["failing"]) for row in clean)
        verdicts: dict[str, int] = {}
        for row in clean:
            for verdict, count in row["verdicts"].items():
                verdicts[verdict] = verdicts.get(verdict, 0) + count
        speed = f"{cases / seconds:.1f} cases/s, {cases / cpu:.1f} per CPU second"
        print(f"\nclean: {cases} cases, {failing} false alarms, {verdicts}; {speed}")


def _cell(counts: Sequence[int | None]) -> str:
    if not counts:
        return "-"
    middle, found = median_of(counts), sum(n is not None for n in counts)
    shown = f"> {FOUND_WITHIN}" if middle is None else f"{middle:g}"
    return shown if found == len(counts) else f"{shown} ({found}/{len(counts)})"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m harness.fuzzing.study", description=__doc__.split("\n")[0])
    parser.add_argument("study", choices=("faults", "several", "clean", "target", "table"))
    parser.add_argument("--out", type=Path, default=Path("reports/fuzz/study.jsonl"), help="the file of measurements")
    parser.add_argument("--seeds", type=int, default=None, help=f"default {SEEDS}, for `several` 1")
    parser.add_argument("--cases", type=int, default=CLEAN, help="for `clean`")
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(1)
    ledger, range_ = Ledger(chosen.out), Range()
    studies = {
        "faults": lambda: study_faults(ledger, range_, chosen.seeds or SEEDS),
        "target": lambda: study_faults(ledger, range_, chosen.seeds or SEEDS, use_target=True),
        "several": lambda: study_several(ledger, range_, chosen.seeds or 1),
        "clean": lambda: study_clean(ledger, chosen.cases),
    }
    if chosen.study in studies:
        for line in studies[chosen.study]():
            sys.stderr.write(line + "\n")
    print_tables(ledger)


if __name__ == "__main__":
    main()
