"""Several processes on one device at once: how many cases per second they examine together.

A single process is often held up by launching small kernels, not by running them. The processes of an adapter are
started once, at the first need, and measure one mix after another: each loads the adapter, warms up, says so, and
waits; all begin on one signal and count what they finish in a window of fixed length. Between mixes they wait for a
line, without work and without what they kept on the device.

    parent -> {"mix": "short"}      member -> {"ready": true}     which the next lines are about
    parent -> {"warm": "examine"}   member -> {"ready": true}     once it has examined cases; "alone": once it has built
                                                                  inputs and run kernel and golden on them
    parent -> {"examine": 5.0}      member -> {"rate": 41.5}      cases per second in a window that long; "alone": of
                                                                  kernel and golden alone
    parent -> {"rest": true}        member -> {"ready": true}     once what it kept is given back
                                    member -> {"usage_error": "..."} instead of any of these, and its end
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self, TextIO

import torch

from harness.bench.alone import KernelAndGolden
from harness.bench.measure import Series, run_cases
from harness.bench.mixes import DEFAULT_CASES, MIXES
from harness.errors import UsageError
from harness.judging.kept import forget
from harness.record import RecordWriter
from harness.running.nursery import die_with_parent
from harness.running.options import RunOptions
from harness.running.together import MOST_CASES
from harness.verdict import Verdict

SEEDS_APART = 1 << 16
END_SECONDS = 10.0  # for the exit code of a process that closed its end


class Together:
    """`processes` processes of one adapter, for as many mixes as are asked; a context manager that ends them all."""

    def __init__(self, adapter: str, processes: int, *, evidence: str = "bound") -> None:
        """Starts nothing yet."""
        self.adapter, self.processes, self.evidence = adapter, processes, evidence
        self.members: list[subprocess.Popen[str]] = []
        self._folder: TemporaryDirectory[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def measure(self, mix: str, *, runs: int = 3, seconds: float = 5.0) -> tuple[Series, Series]:
        """Rates of all together in `runs` windows of `seconds`, and of their kernels and golden alone. Raises
        UsageError if one of them fails."""
        if not self.members:
            self._start()
        self._ask({"mix": mix})
        rates = []
        for what in ("examine", "alone"):
            self._ask({"warm": what})
            windows = [self._ask({what: seconds}) for _ in range(runs)]
            rates.append(Series(tuple(sum(answer["rate"] for answer in window) for window in windows)))
        self._ask({"rest": True})
        return rates[0], rates[1]

    def close(self) -> None:
        """Ends every process and whatever it started, in the middle of work too."""
        for member in self.members:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(member.pid, signal.SIGKILL)  # it leads a session, and is not waited for yet
        for member in self.members:
            member.wait()
            for pipe in (member.stdin, member.stdout):
                with contextlib.suppress(OSError):  # a line that the process did not live to read
                    assert pipe is not None
                    pipe.close()
        self.members.clear()
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def _start(self) -> None:
        # The records are removed here: a process that is killed removes nothing.
        self._folder = TemporaryDirectory()
        words = [self.adapter, self.evidence, self._folder.name, str(os.getpid())]
        for index in range(self.processes):
            self.members.append(
                subprocess.Popen(
                    [sys.executable, "-m", __name__, *words, str(index)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    start_new_session=True,  # Ctrl-C is for the parent, which then ends them
                )
            )

    def _ask(self, request: dict[str, Any]) -> list[dict[str, Any]]:
        """The answers of all, which get the request at once."""
        for number, member in enumerate(self.members, 1):
            assert member.stdin is not None
            try:
                member.stdin.write(json.dumps(request) + "\n")
                member.stdin.flush()
            except OSError:
                raise self._ended(number) from None
        return [self._answer(number) for number in range(1, len(self.members) + 1)]

    def _answer(self, number: int) -> dict[str, Any]:
        stdout = self.members[number - 1].stdout
        assert stdout is not None
        line = stdout.readline()
        if not line:
            raise self._ended(number)
        answer: dict[str, Any] = json.loads(line)
        if "usage_error" in answer:
            raise UsageError(str(answer["usage_error"]))
        return answer

    def _ended(self, number: int) -> UsageError:
        who = f"process {number} of {self.processes} of the bench on {self.adapter} ended before its time"
        try:
            code = self.members[number - 1].wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            return UsageError(f"{who}; its last words, if any, stand above.")
        if code == -signal.SIGKILL:  # as a machine does that has no memory left
            return UsageError(f"{who}: killed by SIGKILL; with fewer --processes each has more room.")
        if code < 0:
            return UsageError(f"{who}: killed by signal {-code}; its last words, if any, stand above.")
        return UsageError(f"{who} with code {code}; its last words stand above.")


def member(spec: str, evidence: str, folder: Path, index: int, requests: TextIO, answers: TextIO) -> None:
    """One process: answer the lines of `requests` until they end."""
    from harness.adapters.registry import load_adapter
    from harness.running.worker import pick_device

    def answer(body: dict[str, Any]) -> None:
        answers.write(json.dumps(body) + "\n")
        answers.flush()

    try:
        adapter = load_adapter(spec)
        device = pick_device(adapter)
        options = RunOptions(evidence=evidence, explain=False, rerun=False)
        writer = RecordWriter(folder / f"{index}.jsonl")
        mix, at_once, seeds = MIXES["short"], 1, itertools.count()
        alone: KernelAndGolden | None = None

        def examine() -> int:
            """The number of cases, all of them right."""
            for record in run_cases(mix.cases(at_once, next(seeds)), adapter, device, options, writer):
                if record.verdict is not Verdict.PASS:
                    raise UsageError(f"{record.case.name} gave {record.verdict}: {record.reason}")
            return at_once

        for line in requests:
            request = json.loads(line)
            if "mix" in request:
                mix = MIXES[request["mix"]]
                at_once = min(DEFAULT_CASES.get(mix.name, 1), MOST_CASES) if device.type == "cuda" else 1
                seeds = itertools.count((index + 1) * SEEDS_APART, at_once)
            elif request.get("warm") == "examine":
                examine()
            elif request.get("warm") == "alone":
                alone = KernelAndGolden(mix.cases(at_once, next(seeds)), adapter, options, device)
                alone.run()
            elif "examine" in request:
                done, start = 0, time.perf_counter()
                while not done or time.perf_counter() - start < request["examine"]:
                    done += examine()
                answer({"rate": done / (time.perf_counter() - start)})
                continue
            elif "alone" in request and alone is not None:
                answer({"rate": alone.rate(request["alone"])})
                continue
            else:
                alone = None
                forget()
                torch.cuda.empty_cache()
            answer({"ready": True})
    except UsageError as problem:
        answer({"usage_error": str(problem)})


def main() -> None:
    spec, evidence, folder, parent, index = sys.argv[1:]
    die_with_parent(int(parent))  # in a window, or in a kernel that does not return, nobody sees standard input end
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a library prints is no answer
    torch.set_num_threads(1)
    member(spec, evidence, Path(folder), int(index), sys.stdin, answers)


if __name__ == "__main__":
    main()
