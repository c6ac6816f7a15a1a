"""A session over many machines: Ray tasks of a few hundred cases, each on a GPU of its own (or a CPU).

    attn-harness fuzz --ray auto --redis redis://host:6379 --adapter flash-attn-4 --minutes 60

A task is an ordinary engine with an ordinary kernel worker beside it. A node that is lost costs the task it was
running: the same task, with the same seed, is given to another node. Examples that failed are in Redis the moment
they fail, so what a lost node had found is tried first by whoever comes next. Findings are kept once by their
signature, and every task is told what is known when it starts.

Every node needs this project, installed or in the same place as here; an adapter's file likewise.
"""

from __future__ import annotations

import dataclasses
import os
import socket
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cases.draw_limits import find_profile
from harness.errors import UsageError
from harness.fuzzing.coverage import EdgeCount, beyond
from harness.fuzzing.drawing import cases_for
from harness.fuzzing.engine import Engine
from harness.fuzzing.engine_options import EngineOptions
from harness.fuzzing.finding import Finding
from harness.fuzzing.kernels import WorkerKernels
from harness.fuzzing.knowledge import Known
from harness.fuzzing.limits import Declaration, draw_limits
from harness.fuzzing.session import Session, SessionOptions
from harness.record import Record
from harness.running.options import RunOptions
from harness.running.pool import ROOT

TASK_EXAMPLES = 200
TASK_SECONDS = 300.0
TRIES = 5  # of a task whose node was lost each time: then it is the task
LOCAL, AUTO = "local", "auto"
CONNECT_LIMIT = 10.0  # seconds; Ray itself would wait for minutes


@dataclass(frozen=True, slots=True)
class Task:
    """What one node is given: plain values."""

    options: EngineOptions
    run_options: RunOptions
    known: tuple[Known, ...] = ()
    redis: str | None = None


@dataclass(slots=True)
class TaskResult:
    """What it gives back. It is its engine's listener, too."""

    declaration: Declaration | None = None
    records: list[Record] = field(default_factory=list)
    steps: list[Record] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    problem: str | None = None

    def on_record(self, record: Record) -> None:
        self.records.append(record)

    def on_shrink(self, record: Record) -> None:
        self.steps.append(record)

    def on_finding(self, finding: Finding) -> None:
        told = dataclasses.replace(finding.explanation, attended=None)  # tensors stay where they are
        self.findings.append(dataclasses.replace(finding, explanation=told))


def run_task(task: Task) -> TaskResult:
    """Runs on a node. Bad use comes back as `problem`; whatever else goes wrong is raised there."""
    result = TaskResult()
    kernels = WorkerKernels(task.options.adapter, task.run_options)
    try:
        result.declaration = kernels.declaration()
        cases = cases_for(result.declaration, task.options.profile, kernels.mend)
        options = dataclasses.replace(task.options, database=shared_database(task.redis, task.options))
        Engine(cases, kernels, options, task.run_options, result, known=task.known).run()
    except UsageError as problem:
        result.problem = str(problem)
    finally:
        kernels.stop()
    return result


def shared_database(url: str | None, options: EngineOptions) -> Any:
    """Hypothesis's Redis database for one adapter and profile, or None. Raises UsageError if it cannot be reached."""
    if url is None:
        return None
    try:
        import redis
        from hypothesis.extra.redis import RedisExampleDatabase
    except ImportError:
        raise UsageError(
            "--redis needs the redis package; `pip install -e '.[distributed]'` in the checkout."
        ) from None
    try:
        client = redis.Redis.from_url(url)
        client.ping()
    except (redis.RedisError, ValueError) as problem:
        raise UsageError(f"no Redis answers at {url}: {problem}.") from None
    prefix = f"attn-harness:{options.adapter}:{options.profile}:"
    return RedisExampleDatabase(client, key_prefix=prefix.encode())


def _must_answer(address: str) -> None:
    """Raises UsageError if nothing listens at host:port (a ray:// address is a host and a port too)."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    try:
        with socket.create_connection((host, int(port)), CONNECT_LIMIT):
            return
    except (OSError, ValueError) as problem:
        raise UsageError(f"no Ray cluster at {address}: {problem}.") from None


class DistributedSession(Session):
    """The same folder and the same result as a session on one host."""

    def __init__(
        self,
        options: SessionOptions,
        run_options: RunOptions,
        reports: Path,
        *,
        address: str,
        redis: str | None = None,
        task_examples: int = TASK_EXAMPLES,
    ) -> None:
        try:
            import ray
        except ImportError:
            raise UsageError(
                "--ray needs the ray package; `pip install -e '.[distributed]'` in the checkout."
            ) from None
        super().__init__(options, run_options, reports)
        self._ray: Any = ray
        self.address, self.redis, self.task_examples = address, redis, task_examples
        self._known: dict[str, list[Known]] = {}

    def _run_engines(self, seconds: float | None) -> None:
        self._connect()
        for adapter in self.options.adapters:  # a Redis that does not answer is told before any task is given
            shared_database(self.redis, self._engine_options(adapter, 0, 1, None))
        try:
            self._give_tasks(seconds)
        except KeyboardInterrupt:
            self.result.interrupted = True
        finally:
            self._ray.shutdown()

    def _connect(self) -> None:
        settings: dict[str, Any] = {"log_to_driver": False, "configure_logging": True, "logging_level": "ERROR"}
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        settings["runtime_env"] = {"env_vars": {"PYTHONPATH": os.pathsep.join(paths)}}
        if self.address == LOCAL:
            settings |= {"num_cpus": self.options.workers or 2, "include_dashboard": False}
        elif self.address != AUTO:
            _must_answer(self.address)
        try:
            self._ray.init(address=self.address, **settings)
        except (ConnectionError, ValueError, RuntimeError) as problem:
            raise UsageError(f"no Ray cluster at {self.address}: {str(problem).splitlines()[0]}") from None

    # -- tasks ---------------------------------------------------------------------------------
    def _give_tasks(self, seconds: float | None) -> None:
        until = None if seconds is None else time.monotonic() + seconds
        cluster = self._ray.cluster_resources()
        gpus, slots = int(cluster.get("GPU", 0)), int(cluster.get("GPU", 0) or cluster.get("CPU", 1))
        run = self._ray.remote(num_gpus=1 if gpus else 0, num_cpus=1, max_retries=0)(run_task)
        waiting = deque(self._tasks())
        running: dict[Any, tuple[str, int, int, int]] = {}
        while waiting or running:
            while waiting and len(running) < slots and (until is None or time.monotonic() < until):
                adapter, shard, examples, tries = waiting.popleft()
                if self.options.examples is None:  # there is always a next task while there is time
                    waiting.append((adapter, shard + 1, examples, 0))
                left = TASK_SECONDS if until is None else min(TASK_SECONDS, until - time.monotonic())
                options = self._engine_options(adapter, shard, examples, None if until is None else left)
                task = Task(options, self.run_options, tuple(self._known.get(adapter, ())), self.redis)
                running[run.remote(task)] = (adapter, shard, examples, tries)
            if not running:
                return  # the time is up
            done, _ = self._ray.wait(list(running), num_returns=1, timeout=1.0)
            for reference in done:
                adapter, shard, examples, tries = running.pop(reference)
                try:
                    self._take(adapter, self._ray.get(reference))
                except self._ray.exceptions.RayTaskError:
                    raise  # the harness's own fault, on any node
                except self._ray.exceptions.RayError as lost:
                    if tries + 1 >= TRIES:
                        raise UsageError(f"task {shard} of {adapter} was lost {TRIES} times: {lost}") from None
                    self._progress.tell(f"task {shard} of {adapter} was lost ({type(lost).__name__}); given again")
                    waiting.appendleft((adapter, shard, examples, tries + 1))

    def _tasks(self) -> list[tuple[str, int, int, int]]:
        """(adapter, shard, examples, tries so far)"""
        total = self.options.examples
        if total is None:
            return [(adapter, 0, self.task_examples, 0) for adapter in self.options.adapters]
        starts = range(0, total, self.task_examples)
        return [
            (adapter, shard, min(self.task_examples, total - start), 0)
            for shard, start in enumerate(starts)
            for adapter in self.options.adapters
        ]

    def _engine_options(self, adapter: str, shard: int, examples: int, seconds: float | None) -> EngineOptions:
        return EngineOptions(
            adapter,
            profile=self.options.profile,
            seed=self.options.seed,
            shard=shard,
            examples=examples,
            seconds=seconds,
            use_target=self.options.use_target,
        )

    def _take(self, adapter: str, result: TaskResult) -> None:
        """Merge what a task gives back."""
        if result.problem is not None:
            raise UsageError(result.problem)
        assert result.declaration is not None
        profile = find_profile(self.options.profile)
        empty = EdgeCount(beyond(draw_limits(result.declaration), profile))
        self.result.coverage.setdefault(adapter, empty)
        for record in result.records:
            self.on_record(record)
        for record in result.steps:
            self.on_shrink(record)
        for finding in result.findings:
            known = self._known.setdefault(adapter, [])
            fault = finding.explanation.fault
            if fault is None or all(other.fault != fault for other in known):
                known.append(Known.of(finding))
            self.on_finding(finding)
