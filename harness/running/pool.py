"""The parent's end of a worker: a process that can be lost and replaced.

A CUDA fault or a hang kills its process and nothing else; the case gets CRASH or TIMEOUT.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from harness.errors import UsageError
from harness.record import Record
from harness.running.nursery import Forked, Nursery, NurseryLost
from harness.running.options import EXPLAINED, Job, RunOptions
from harness.verdict import Verdict

ROOT = Path(__file__).resolve().parents[2]
END: dict[str, Any] = {"end": True}
WORKERS = "the worker's record"
LAST_WORDS_LIMIT = 10.0  # seconds for a worker that closed its pipe to end
EXPLAIN_LIMIT = 120.0  # seconds for an explanation; the verdict is there before it
SILENCE = 0.2  # seconds without a byte: an ended worker has said all, though something holds its pipe
LONGEST_REPLY = 1 << 28  # bytes
START_LIMIT = 300.0  # seconds for a worker to import its libraries and answer


def stage_limit(stage: str, options: RunOptions) -> float:
    """Seconds that a worker may be silent in a stage."""
    if stage == "explain":
        return EXPLAIN_LIMIT
    return options.prepare_limit if stage in ("start", "prepare") else options.time_limit


class WorkerClosed(UsageError):
    """A worker was asked for after its end."""


class WorkerProcess:
    """One worker process on one GPU (or none), started when first needed, replaced when it dies."""

    module = "harness.running.worker"  # what the process runs

    def __init__(
        self,
        *,
        gpu: str | None = None,
        threads: int | None = None,
        compilers: int | None = None,
        python: str = sys.executable,
    ) -> None:
        """compilers: that a library in it may start at once, unless MAX_JOBS (FlashInfer's, torch's) says already"""
        self.python = python
        self.environment = dict(os.environ)
        # The worker must find these packages even in an environment that does not have them installed.
        self.environment["PYTHONPATH"] = os.pathsep.join(
            part for part in (str(ROOT), os.environ.get("PYTHONPATH", "")) if part
        )
        if gpu is not None:
            self.environment["CUDA_VISIBLE_DEVICES"] = gpu
        if threads is not None:
            self.environment["ATTN_HARNESS_THREADS"] = str(threads)
        if compilers is not None:
            self.environment.setdefault("MAX_JOBS", str(compilers))
        self._nursery: Nursery | None = None
        self._process: Forked | None = None
        self._replies: queue.Queue[dict[str, Any]] = queue.Queue()
        self._stderr = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        self.cases_since_start = 0
        self._requests = 0
        self._closed = False
        self._explained: Counter[str] = Counter()
        self.versions: dict[str, str] = {}

    # -- life ----------------------------------------------------------------------------------
    def start(self) -> None:
        """Start the process unless it runs, and wait until it answers. Raises UsageError if it cannot."""
        if self._closed:
            raise WorkerClosed("a worker was asked for after its end.")
        if self._process is not None and self._process.poll() is None:
            return
        self.renew()  # whatever an ended one started
        self.cases_since_start = 0
        self._replies = queue.Queue()
        try:
            process = self._process = self._fresh()
        except OSError as problem:
            raise UsageError(f"cannot start a worker with {self.python}: {problem.strerror}.") from None
        except NurseryLost:
            self.stop()
            raise UsageError(
                f"a worker with {self.python} did not start: {self._last_words() or 'no answer'}."
            ) from None
        threading.Thread(target=self._listen, args=(process, self._replies), daemon=True).start()
        if self._closed:  # while it was being started
            self.stop()
        reply = self._next_reply(START_LIMIT) if self._send({"op": "ping"}) else END
        self.versions = {} if reply is None else reply.get("pong", {})
        if reply is None or "pong" not in reply:
            self.stop()
            raise UsageError(f"a worker with {self.python} did not start: {self._last_words() or 'no answer'}.")

    def _fresh(self) -> Forked:
        """A fresh process; from a new nursery where there is none, or it was lost. Raises NurseryLost and OSError."""
        kept = self._nursery
        if kept is not None:
            with contextlib.suppress(NurseryLost):
                return kept.fork(self.environment, START_LIMIT)
            kept.close()
        self._nursery = nursery = Nursery(self.python, self.module, self.environment, self._stderr)
        return nursery.fork(self.environment, START_LIMIT)

    def renew(self) -> None:
        """Kill the process and whatever it started; the next request goes to a fresh one, which costs next to nothing.

        May be called from any thread, while another is at work with it.
        """
        process, self._process = self._process, None
        if process is None:
            return
        process.kill_group()
        with contextlib.suppress(subprocess.TimeoutExpired):  # stuck in a driver's call: it dies when that returns
            process.wait()
        with contextlib.suppress(OSError):  # what was not sent is lost with the process
            process.stdin.close()  # its output is closed by the thread that reads it

    def stop(self) -> None:
        """The same, and end what fresh processes come from."""
        self.renew()
        nursery, self._nursery = self._nursery, None
        if nursery is not None:
            nursery.close()

    def close(self) -> None:
        """Stop for good: a thread still at work with it cannot start another process, which would outlive us."""
        self._closed = True
        self.stop()

    # -- work ----------------------------------------------------------------------------------
    def examine(self, job: Job, options: RunOptions) -> Record:
        """The record of one job; CRASH or TIMEOUT if the process died or hung over it."""
        self.start()
        self.cases_since_start += 1
        self._stderr.seek(0)
        self._stderr.truncate()
        request = {
            "op": "examine",
            "case": job.case.to_json(),
            "adapter": job.adapter,
            "options": self._in_words(options, job.adapter),
            "suite": job.suite,
        }
        lost = Record(
            job.case, job.adapter, Verdict.CRASH, suite=job.suite, fault=options.fault, versions=self.versions
        )
        if not self._send(request):
            return self._lost(lost, "start")
        stage = "start"
        judged: Record | None = None
        while True:
            limit = stage_limit(stage, options)
            reply = self._next_reply(limit)
            if judged is not None and (reply is None or reply is END or "garbage" in reply):
                self.renew()
                return judged.replace(explanation=("the explanation did not end in time.",))
            if reply is None:
                self.renew()
                return lost.replace(verdict=Verdict.TIMEOUT, reason=f"no answer within {limit:g} s in {stage}")
            if reply is END:
                return self._lost(lost, stage)
            if "garbage" in reply:
                self.renew()
                how = f"no reply is what it wrote to its reply pipe ({reply['garbage']}), and it was killed for that"
                return lost.replace(reason=f"the worker died in {stage}: {how}")
            if judged is not None and "error" in reply:
                self.renew()
                return judged.replace(explanation=(f"the explanation failed: {reply['error']}",))
            if "judged" in reply:
                judged, stage = Record.from_json(reply["judged"], WORKERS, job.case), "explain"
            elif "stage" in reply:
                stage = reply["stage"]
                lost = lost.replace(device=reply.get("device", lost.device))
            elif "record" in reply:
                if not reply["healthy"]:
                    self.renew()
                return self._counted(Record.from_json(reply["record"], WORKERS, job.case))
            elif "usage_error" in reply:
                raise UsageError(reply["usage_error"])
            else:
                self.renew()  # what made the harness fail, a device lost to the process say, would stay for all others
                return lost.replace(verdict=Verdict.ERROR, reason=f"the harness failed: {reply.get('error')}")

    def examine_many(
        self,
        jobs: Sequence[Job],
        options: RunOptions,
        on_settled: Callable[[int, Record], None] = lambda _index, _record: None,
    ) -> list[Record] | None:
        """The records of jobs of one adapter, examined together; None, and a new process, if it was lost over them.

        Then each has to be examined alone, which tells which one it was: each but those told to `on_settled` (with
        their index), as soon as they passed.
        """
        request = {
            "op": "examine_many",
            "cases": [job.case.to_json() for job in jobs],
            "suites": [job.suite for job in jobs],
            "adapter": jobs[0].adapter,
            "options": self._in_words(options, jobs[0].adapter),
        }
        self.start()
        self._stderr.seek(0)
        self._stderr.truncate()
        self.cases_since_start += len(jobs)
        stage = "start"
        reply: dict[str, Any] | None = {"stage": stage} if self._send(request) else END
        while reply is not None and ("stage" in reply or "settled" in reply):
            if "settled" in reply:
                index = reply["index"]
                on_settled(index, Record.from_json(reply["settled"], WORKERS, jobs[index].case))
            stage = reply.get("stage", stage)
            reply = self._next_reply(stage_limit(stage, options))
        if reply is not None and "usage_error" in reply:
            raise UsageError(reply["usage_error"])
        if reply is None or reply.get("records") is None:
            self.renew()
            return None
        return [
            self._counted(Record.from_json(body, WORKERS, job.case))
            for job, body in zip(jobs, reply["records"], strict=True)
        ]

    def _in_words(self, options: RunOptions, adapter: str) -> dict[str, Any]:
        """The options to send. A fresh process does not know what the ones before it explained."""
        return options.to_json() | {"explain": options.explain and self._explained[adapter] < EXPLAINED}

    def _counted(self, record: Record) -> Record:
        self._explained[record.adapter] += bool(record.explanation)
        return record

    def ask(self, request: dict[str, Any], limit: float) -> dict[str, Any] | None:
        """The answer to another request than "examine"; None, and a new process, if none comes in `limit` seconds.

        A new process also after an answer that says "error", or that the device is no longer "healthy".
        """
        self.start()
        self.cases_since_start += 1
        reply = self._next_reply(limit) if self._send(request) else END
        while reply is not None and "stage" in reply:
            reply = self._next_reply(limit)
        if reply is None or reply is END or "garbage" in reply:
            self.renew()
            return None
        if "error" in reply or not reply.get("healthy", True):
            self.renew()
        return reply

    def _lost(self, record: Record, stage: str) -> Record:
        process = self._process
        if process is None:
            return record.replace(verdict=Verdict.CRASH, reason=f"the worker was ended by its parent in {stage}")
        try:
            code = process.wait(timeout=LAST_WORDS_LIMIT)
        except subprocess.TimeoutExpired:
            how = ": it closed its reply pipe, lived on and was killed for that"
        else:
            how = f" with signal {signal.Signals(-code).name}" if code < 0 else f" with exit code {code}"
            if process.nursery.lost:
                how = ": the process that it was forked from was ended, by the adapter or from outside"
        words = self._last_words()
        self.renew()
        reason = f"the worker died in {stage}{how}" + (f": {words}" if words else "")
        return record.replace(verdict=Verdict.CRASH, reason=reason)

    # -- pipes ---------------------------------------------------------------------------------
    def _send(self, request: dict[str, Any]) -> bool:
        process = self._process
        if process is None:
            return False
        assert process.stdin is not None
        self._requests += 1
        try:
            process.stdin.write(json.dumps({**request, "request": self._requests}) + "\n")
            process.stdin.flush()
        except (OSError, ValueError):  # ValueError: stopped, and so closed, by another thread
            return False
        return True

    @staticmethod
    def _listen(process: Forked, replies: queue.Queue[dict[str, Any]]) -> None:
        """Put its replies, the first line that is none, and END: once its pipe is closed, or it ended and is silent.

        What an adapter started may hold the pipe open for ever.
        """
        with process.stdout as pipe, selectors.DefaultSelector() as selector:
            selector.register(pipe, selectors.EVENT_READ)
            said, sane = bytearray(), True
            while sane:
                ended = process.poll() is not None  # asked first: whatever it wrote is in the pipe then
                if not selector.select(SILENCE):
                    if ended:
                        break
                    continue
                chunk = pipe.read(1 << 16)
                if not chunk:
                    break
                said += chunk
                if b"\n" in chunk:
                    *lines, said = said.split(b"\n")
                    sane = all(_put_reply(line, replies) for line in lines)
                elif len(said) > LONGEST_REPLY:
                    sane = _put_reply(said, replies)
        replies.put(END)

    def _next_reply(self, limit: float) -> dict[str, Any] | None:
        """The next message, END once the worker has closed its pipe, or None after `limit` seconds."""
        while True:
            try:
                reply = self._replies.get(timeout=limit)
            except queue.Empty:
                return None
            # An answer to an earlier request, from a child that an adapter left behind, is nobody's.
            if reply is END or "garbage" in reply or reply.get("request") == self._requests:
                return reply

    def _last_words(self) -> str:
        """The last line the worker wrote to standard error."""
        self._stderr.seek(0)
        lines = [line.strip() for line in self._stderr.read().splitlines() if line.strip()]
        return lines[-1][:300] if lines else ""


def _put_reply(line: bytearray, replies: queue.Queue[dict[str, Any]]) -> bool:
    """Put the message that a line is; False, and "garbage" with its beginning, if it is none."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        message = None
    sane = isinstance(message, dict)
    replies.put(message if sane else {"garbage": repr(bytes(line[:60]))[1:]})
    return sane
