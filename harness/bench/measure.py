"""Measuring one adapter on one mix, in this process or in several that share the device."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from cases.schema import AttentionCase
from harness.adapters.protocol import Adapter
from harness.bench.alone import KernelAndGolden
from harness.bench.mixes import Mix
from harness.bench.straight import straight_check
from harness.errors import KernelFailed, UsageError
from harness.judging.kept import forget
from harness.record import Record, RecordWriter
from harness.running.examine import synchronize
from harness.running.options import RunOptions
from harness.running.together import MOST_CASES, examine_together
from harness.verdict import Verdict

STAGES = ("draw", "build", "plan", "run", "golden", "judge", "record", "other")
KERNEL_AND_GOLDEN = ("run", "golden")
LOOPS = {"straight fp64": torch.float64, "straight fp32": torch.float32}


@dataclass(frozen=True, slots=True)
class Series:
    """Rates of several runs of one thing, cases per second."""

    rates: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.rates or min(self.rates) <= 0:
            raise UsageError("nothing was measured; allow more --seconds.")

    @property
    def median(self) -> float:
        return statistics.median(self.rates)

    @property
    def spread(self) -> float:
        """(largest - smallest) / median"""
        return (max(self.rates) - min(self.rates)) / self.median

    def to_json(self) -> dict[str, Any]:
        return {"median": self.median, "spread": self.spread, "runs": list(self.rates)}


@dataclass(frozen=True, slots=True)
class Measurement:
    """One adapter on one mix with one kind of evidence.

    rate:        the harness, stages not waited for one by one
    alone:       kernel and golden alone, on inputs that are there already (harness/bench/alone.py)
    cpu:         processor seconds of this process per case, which other work on the machine does not lengthen
    seconds:     per case by stage, from a run that waits for the device after each stage
    loops:       the straight loops on the same shapes, by name
    peak_bytes:  device memory at its highest, None on a CPU
    verdicts:    of the measured cases; a bench of wrong answers measures something else
    shared:      the rate of several processes together, where asked for
    shared_alone: of their kernels and golden alone
    processes:   that shared the device for these two
    """

    mix: str
    adapter: str
    evidence: str
    device: str
    cases: int
    rate: Series
    cpu: float
    seconds: dict[str, float]
    loops: dict[str, Series] = field(default_factory=dict)
    peak_bytes: int | None = None
    verdicts: dict[str, int] = field(default_factory=dict)
    alone: Series | None = None
    shared: Series | None = None
    shared_alone: Series | None = None
    processes: int = 1

    @property
    def best(self) -> Series:
        """The faster of one process and several."""
        return max((s for s in (self.rate, self.shared) if s is not None), key=lambda s: s.median)

    @property
    def shares(self) -> dict[str, float]:
        """Share of each stage, adding up to 1."""
        total = sum(self.seconds.values())
        return {name: value / total for name, value in self.seconds.items()}

    @property
    def harness_share(self) -> float:
        """Everything but the kernel and golden, each stage waited for."""
        return 1 - sum(self.shares.get(name, 0.0) for name in KERNEL_AND_GOLDEN)

    @property
    def wall_share(self) -> float | None:
        """How much of the rate of kernel and golden alone the harness loses, nothing waited for stage by stage; None
        where that was not measured."""
        return _lost(self.rate, self.alone)

    @property
    def shared_wall_share(self) -> float | None:
        """The same of several processes that share the device."""
        return _lost(self.shared, self.shared_alone)

    def to_json(self) -> dict[str, Any]:
        return {
            "mix": self.mix,
            "adapter": self.adapter,
            "evidence": self.evidence,
            "device": self.device,
            "cases": self.cases,
            "processes": self.processes,
            "cases_per_second": self.rate.to_json(),
            "cpu_seconds_per_case": self.cpu,
            "milliseconds_per_case": {name: value * 1e3 for name, value in self.seconds.items()},
            "shares": self.shares,
            "harness_share": self.harness_share,
            "wall_share": self.wall_share,
            "shared_wall_share": self.shared_wall_share,
            **{
                f"{name}cases_per_second": None if series is None else series.to_json()
                for name, series in (
                    ("alone_", self.alone),
                    ("shared_", self.shared),
                    ("shared_alone_", self.shared_alone),
                )
            },
            "loops": {name: series.to_json() for name, series in self.loops.items()},
            "ratio_to_loops": {name: self.best.median / series.median for name, series in self.loops.items()},
            "peak_bytes": self.peak_bytes,
            "verdicts": self.verdicts,
        }


def _lost(rate: Series | None, alone: Series | None) -> float | None:
    return None if rate is None or alone is None else max(0.0, 1 - rate.median / alone.median)


class Clock:
    """When to stop: after `seconds` of a measurement no further run begins (the first always does)."""

    def __init__(self, seconds: float) -> None:
        self._end = time.perf_counter() + seconds

    @property
    def is_over(self) -> bool:
        return time.perf_counter() >= self._end


def measure(
    mix: Mix,
    adapter: Adapter,
    device: torch.device,
    *,
    evidence: str = "bound",
    cases: int,
    runs: int = 5,
    seconds: float = 60.0,
    loops: bool = True,
) -> Measurement:
    """Time `adapter` on `cases` cases of `mix` in this process, `runs` times, within about `seconds`.

    Every run has seeds of its own, so that nothing kept by case id can help. Several processes together are measured
    by harness/bench/shared.py, after this.
    """
    options = RunOptions(evidence=evidence, explain=False, rerun=False)
    clock = Clock(seconds)
    verdicts: dict[str, int] = {}
    with TemporaryDirectory() as folder:
        writer = RecordWriter(Path(folder) / "records.jsonl")
        run_cases(mix.cases(2, 1 << 20), adapter, device, options, writer)  # warm: modules, allocator, libraries
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        rates, processor = [], []
        forget()  # the same cases through another adapter, before this measurement
        for run in range(runs):
            if run and clock.is_over:
                break
            batch = mix.cases(cases, run * cases)
            start, start_cpu = time.perf_counter(), time.process_time()
            for record in run_cases(batch, adapter, device, options, writer):
                verdicts[str(record.verdict)] = verdicts.get(str(record.verdict), 0) + 1
            synchronize(device)
            rates.append(cases / (time.perf_counter() - start))
            processor.append((time.process_time() - start_cpu) / cases)
        peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
        stages = stage_seconds(mix.cases(cases, 1 << 21), adapter, device, options, writer)
        writer.close()
    _refuse_other_verdicts(mix, adapter, verdicts)
    spared = KernelAndGolden(mix.cases(cases, 1 << 22), adapter, options, device)
    spared.run()  # warm
    clock = Clock(seconds / 2)
    alone = [spared.rate(0.0)]
    while len(alone) < runs and not clock.is_over:
        alone.append(spared.rate(0.0))
    return Measurement(
        mix=mix.name,
        adapter=adapter.name,
        evidence=evidence,
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        cases=cases,
        rate=Series(tuple(rates)),
        cpu=statistics.median(processor),
        seconds=stages,
        loops=_measure_loops(mix, adapter, device, cases, runs, seconds) if loops else {},
        peak_bytes=peak,
        verdicts=verdicts,
        alone=Series(tuple(alone)),
    )


def run_cases(
    cases: Sequence[AttentionCase],
    adapter: Adapter,
    device: torch.device,
    options: RunOptions,
    writer: RecordWriter,
    exact_stages: bool = False,
) -> list[Record]:
    """Examine and record, as a worker and its parent do, without the pipe between them."""
    records = []
    for record in _examined(cases, adapter, device, options, exact_stages):
        start = time.perf_counter()
        body = json.loads(json.dumps(record.to_json()))
        writer.write(Record.from_json(body, "a record of the bench", record.case))
        record.seconds["record"] = time.perf_counter() - start
        records.append(record)
    return records


def _examined(
    cases: Sequence[AttentionCase], adapter: Adapter, device: torch.device, options: RunOptions, exact_stages: bool
) -> Iterator[Record]:
    for at in range(0, len(cases), MOST_CASES):
        group = cases[at : at + MOST_CASES]
        yield from examine_together(group, adapter, options, device, exact_stages=exact_stages)


def stage_seconds(
    cases: Sequence[AttentionCase],
    adapter: Adapter,
    device: torch.device,
    options: RunOptions,
    writer: RecordWriter,
) -> dict[str, float]:
    """Mean seconds per case by stage, the device waited for at the end of each."""
    sums = dict.fromkeys(STAGES, 0.0)
    for record in run_cases(cases, adapter, device, options, writer, exact_stages=True):
        known = {name: s for name, s in record.seconds.items() if name in STAGES}
        for name, value in known.items():
            sums[name] += value
        # Outside any stage: choosing evidence, the verdict, the timers themselves.
        named = sum(s for name, s in known.items() if name != "record") + record.seconds.get("prepare", 0.0)
        sums["other"] += max(0.0, record.seconds.get("total", 0.0) - named)
    return {name: value / len(cases) for name, value in sums.items()}


def _refuse_other_verdicts(mix: Mix, adapter: Adapter, verdicts: dict[str, int]) -> None:
    others = {name: count for name, count in verdicts.items() if name != str(Verdict.PASS)}
    if others:
        told = ", ".join(f"{count} {name}" for name, count in others.items())
        wrong = any(Verdict(name).is_finding for name in others)
        raise (KernelFailed if wrong else UsageError)(
            f"mix {mix.name} on {adapter.name} gave {told} instead of PASS, so its speed says nothing; "
            "look at them with `attn-harness run`."
        )


def _measure_loops(
    mix: Mix, adapter: Adapter, device: torch.device, cases: int, runs: int, seconds: float
) -> dict[str, Series]:
    def check(dtype: torch.dtype) -> Callable[[AttentionCase], float]:
        return lambda case: straight_check(case, adapter, device, dtype)

    return {name: time_loop(check(dtype), mix, cases, runs, seconds / 2) for name, dtype in LOOPS.items()}


def time_loop(check: Callable[[AttentionCase], Any], mix: Mix, cases: int, runs: int, seconds: float) -> Series:
    """Rates of `check` over the same shapes that the harness ran."""
    clock = Clock(seconds)
    check(mix.case(1 << 20))
    rates = []
    for run in range(runs):
        if run and clock.is_over:
            break
        start = time.perf_counter()
        for case in mix.cases(cases, run * cases):
            check(case)
        rates.append(cases / (time.perf_counter() - start))
    return Series(tuple(rates))
