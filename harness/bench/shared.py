"""Several processes on one device at once: how many cases per second they examine together.

Each process loads the adapter, warms up, says so, and waits; all begin on one signal and count what they finish
in a window of fixed length. A single process is often held up by launching small kernels, not by running them.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from harness.bench.measure import Series, run_cases
from harness.bench.mixes import DEFAULT_CASES, MIXES
from harness.errors import UsageError
from harness.record import RecordWriter
from harness.running.options import RunOptions
from harness.running.together import MOST_CASES
from harness.verdict import Verdict

SEEDS_APART = 1 << 16


def measure_shared(
    mix: str, adapter: str, processes: int, *, evidence: str = "bound", runs: int = 3, seconds: float = 5.0
) -> Series:
    """Rates of `processes` processes together in `runs` windows of `seconds`. Raises UsageError if one fails."""
    arguments = [mix, adapter, evidence, str(seconds)]
    members = [
        subprocess.Popen(
            [sys.executable, "-m", "harness.bench.shared", *arguments, str(index)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for index in range(processes)
    ]
    try:
        _answers(members)
        rates = []
        for _ in range(runs):
            for member in members:
                assert member.stdin is not None
                member.stdin.write("go\n")
                member.stdin.flush()
            rates.append(sum(_answers(members)))
    finally:
        for member in members:
            member.kill()
            member.wait()
    return Series(tuple(rates))


def _answers(members: list[subprocess.Popen[str]]) -> list[float]:
    answers = []
    for member in members:
        assert member.stdout is not None
        line = member.stdout.readline()
        while line and not line.startswith("{"):  # a library's own printing
            line = member.stdout.readline()
        if not line:
            raise UsageError("a process of the bench ended before its time; its last words stand above.")
        answers.append(float(json.loads(line)["rate"]))
    return answers


def member(mix: str, spec: str, evidence: str, seconds: float, index: int) -> None:
    """One process: answer {"rate": ...} once warm, and again for every line read."""
    from harness.adapters.registry import load_adapter
    from harness.running.worker import pick_device

    adapter = load_adapter(spec)
    device = pick_device(adapter)
    options = RunOptions(evidence=evidence, explain=False, rerun=False)
    seed = (index + 1) * SEEDS_APART
    at_once = min(DEFAULT_CASES.get(mix, 1), MOST_CASES) if torch.cuda.is_available() else 1
    with TemporaryDirectory() as folder:
        writer = RecordWriter(Path(folder) / "records.jsonl")
        run_cases(MIXES[mix].cases(at_once, seed), adapter, device, options, writer)
        seed += at_once
        print(json.dumps({"rate": 0}), flush=True)
        for _ in sys.stdin:
            done, start = 0, time.perf_counter()
            while time.perf_counter() - start < seconds:
                for record in run_cases(MIXES[mix].cases(at_once, seed), adapter, device, options, writer):
                    if record.verdict is not Verdict.PASS:
                        raise UsageError(f"{record.case.name} gave {record.verdict}: {record.reason}")
                seed += at_once
                done += at_once
            print(json.dumps({"rate": done / (time.perf_counter() - start)}), flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    member(sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4]), int(sys.argv[5]))
