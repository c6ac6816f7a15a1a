"""Where a session's cases run: in a worker that may die, or, for emulated kernels in studies, right here."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Protocol

import torch

from cases.schema import AttentionCase
from harness.adapters.protocol import Adapter
from harness.adapters.registry import load_adapter
from harness.diagnosis.explaining import Explanation
from harness.environment import gpu_ids
from harness.errors import UsageError
from harness.faults.protocol import PlanFault
from harness.faults.registry import equip
from harness.faults.shots import Range
from harness.fuzzing.explaining import SECONDS, Culprits, Groups, explain_record, which_known
from harness.fuzzing.kernel_worker import FuzzWorkerProcess
from harness.fuzzing.limits import Declaration, mend
from harness.record import Record
from harness.running import sharing
from harness.running.examine import Examiner, Stopwatch, examine
from harness.running.options import Job, RunOptions
from harness.running.pool import START_LIMIT
from harness.running.runner import examine_with_reruns
from harness.verdict import Stability, Verdict

GRACE = 30.0  # seconds beyond its own limit that a worker is given to answer


class Kernels(Protocol):
    """What an engine asks of one adapter."""

    def declaration(self) -> Declaration:
        """What is drawn for it. Raises UsageError if the adapter cannot be had, or takes no part of the fault."""
        ...

    def mend(self, case: AttentionCase) -> AttentionCase | None:
        """See harness.fuzzing.limits."""
        ...

    def examine(self, case: AttentionCase, options: RunOptions) -> Record:
        """The record of one run."""
        ...

    def confirm(self, case: AttentionCase, options: RunOptions) -> Record:
        """The record of a run that is repeated twice if it fails, with its stability."""
        ...

    def explain(
        self, record: Record, witnesses: Sequence[Record], known: Groups, options: RunOptions, seconds: float
    ) -> Explanation:
        """See harness.fuzzing.explaining."""
        ...

    def which_known(self, record: Record, known: Groups, options: RunOptions) -> Culprits | None:
        """See harness.fuzzing.explaining."""
        ...

    def stop(self) -> None:
        """End whatever was started, for good; from any thread."""
        ...


class WorkerKernels:
    """In a process of its own, number `index` `of` so many, on its share of the GPUs."""

    def __init__(
        self, adapter: str, options: RunOptions, index: int = 0, python: str = sys.executable, of: int = 1
    ) -> None:
        self.adapter, self.options = adapter, options
        self._declaration: Declaration | None = None
        self._mended: dict[AttentionCase, AttentionCase | None] = {}
        gpus = gpu_ids()
        self.worker = FuzzWorkerProcess(
            gpu=gpus[index % len(gpus)] if gpus else None,
            threads=None if gpus else 1,
            compilers=sharing.compilers(of),
            python=python,
        )

    def declaration(self) -> Declaration:
        if self._declaration is None:
            reply = self._ask("declare", None, self.options, START_LIMIT, {})
            if reply is None or "declaration" not in reply:
                why = "its process ended" if reply is None else reply.get("usage_error") or reply.get("error")
                raise UsageError(f"adapter {self.adapter} cannot be loaded: {str(why).rstrip('.')}.")
            self._declaration = Declaration.from_json(reply["declaration"])
        return self._declaration

    def mend(self, case: AttentionCase) -> AttentionCase | None:
        declared = self.declaration()
        if not declared.has_rules:
            return mend(case, declared.capabilities)
        if case not in self._mended:  # Hypothesis replays a case many times
            reply = self._ask("mend", case, self.options, START_LIMIT, {})
            body = None if reply is None else reply.get("case")
            self._mended[case] = None if body is None else AttentionCase.from_json(body)
        return self._mended[case]

    def examine(self, case: AttentionCase, options: RunOptions) -> Record:
        return self.worker.examine(Job(case, self.adapter), options)

    def confirm(self, case: AttentionCase, options: RunOptions) -> Record:
        self.worker.renew()  # the first run in a fresh process: what other cases left behind is gone
        return examine_with_reruns(self.worker, Job(case, self.adapter), options)

    def explain(
        self, record: Record, witnesses: Sequence[Record], known: Groups, options: RunOptions, seconds: float
    ) -> Explanation:
        if _killed_its_process(record):
            return Explanation(("not explained: the case ends the process that would explain it.",))
        more = {
            "record": record.to_json(),
            "witnesses": [witness.to_json() for witness in witnesses],
            "known": [list(group) for group in known],
            "seconds": seconds,
        }
        reply = self._ask("explain", record.case, options, 4 * seconds + SECONDS, more)
        if reply is None or "explanation" not in reply:
            why = "the process ended, or took too long" if reply is None else reply.get("error", "no answer")
            return Explanation((f"not explained: {why}.",))
        told: dict[str, Any] = {
            name: tuple(v) if isinstance(v, list) else v for name, v in reply["explanation"].items()
        }
        return Explanation(**told)

    def which_known(self, record: Record, known: Groups, options: RunOptions) -> Culprits | None:
        if _killed_its_process(record):
            return None
        names = {"known": [list(group) for group in known], "record": record.to_json()}
        reply = self._ask("which_known", record.case, options, SECONDS, names)
        culprits = None if reply is None else reply.get("known")
        return None if culprits is None else [(at, name) for at, name in culprits]

    def _ask(
        self, op: str, case: AttentionCase | None, options: RunOptions, seconds: float, more: dict[str, Any]
    ) -> dict[str, Any] | None:
        request = {"op": op, "adapter": self.adapter, "options": options.to_json(), **more}
        if case is not None:
            request["case"] = case.to_json()
        fresh = self.worker.cases_since_start == 0  # it may have to compile first
        return self.worker.ask(request, seconds + (options.prepare_limit if fresh else GRACE))

    def stop(self) -> None:
        self.worker.close()


def _killed_its_process(record: Record) -> bool:
    return record.verdict is Verdict.TIMEOUT or record.reason.startswith("the worker died")


class LocalKernels:
    """In this process, on the CPU: for emulated kernels, where a hop to a worker would be half of the time."""

    def __init__(self, adapter: str, fault: str | None = None, range_: Range | None = None) -> None:
        self.adapter: Adapter
        self.mutate: PlanFault | None
        self.adapter, self.mutate = (load_adapter(adapter), None) if fault is None else equip(adapter, fault)
        self.range = Range() if range_ is None else range_
        self.device = torch.device("cpu")

    def declaration(self) -> Declaration:
        return Declaration.of(self.adapter)

    def mend(self, case: AttentionCase) -> AttentionCase | None:
        return mend(case, self.adapter.capabilities)

    def examine(self, case: AttentionCase, options: RunOptions) -> Record:
        return examine(case, self.adapter, options, self.device, mutate_plan=self.mutate)

    def confirm(self, case: AttentionCase, options: RunOptions) -> Record:
        first, *again = (self.examine(case, options) for _ in range(3))
        same = all(record.verdict is first.verdict for record in again)
        stability = Stability.DETERMINISTIC if same else Stability.FLAKY
        return first.replace(stability=stability) if first.verdict.is_finding else first

    def explain(
        self, record: Record, witnesses: Sequence[Record], known: Groups, options: RunOptions, seconds: float
    ) -> Explanation:
        del options
        return explain_record(self._examiner(record.case), record, witnesses, known, self.range, seconds)

    def which_known(self, record: Record, known: Groups, options: RunOptions) -> Culprits | None:
        del options
        return which_known(self._examiner(record.case), record, known, self.range)

    def _examiner(self, case: AttentionCase) -> Examiner:
        watch = Stopwatch(self.device, lambda _stage: None)
        return Examiner(case, self.adapter, self.device, watch, self.mutate)

    def stop(self) -> None:
        """Nothing to stop."""
