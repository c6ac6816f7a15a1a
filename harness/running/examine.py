"""One case through one adapter in this process, judged: the heart of the harness.

    case -> batch -> plan -> kernels -> output -> evidence -> verdict

It may crash the process it runs in; callers that must survive use a worker (harness/running/pool.py).
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from cases.batch import AttentionBatch, build_batch
from cases.recipes import LogicalData, make_data
from cases.schema import AttentionCase, Poison
from harness.adapters.protocol import Adapter, AttentionOutput
from harness.judging.cache import only_the_cache
from harness.judging.gather import Outcome, gather_evidence
from harness.metamorphic.checking import DETERMINISM
from harness.record import Record
from harness.running.options import RunOptions
from harness.running.torch_state import adapters_defaults
from harness.verdict import Evidence, Verdict

HERE = Path(__file__).parent  # frames of the harness's own running


class AdapterFailure(Exception):
    """The adapter raised. `verdict` is CRASH or OUT_OF_MEMORY; an exception text is never read for more.

    place: file:line in the adapter's own file where it raised, or called what raised; "" if it was not its code
    """

    def __init__(self, stage: str, cause: BaseException) -> None:
        self.verdict = Verdict.OUT_OF_MEMORY if isinstance(cause, torch.cuda.OutOfMemoryError) else Verdict.CRASH
        try:
            text = str(cause).strip().splitlines() or [""]
        except Exception:  # an exception of an adapter's own, whose text cannot be had either
            text = ["(its text cannot be read)"]
        super().__init__(f"{stage} raised {type(cause).__name__}: {text[0][:300]}".rstrip(": "))
        self.__cause__ = cause
        self.place = _place_of(cause)

    @property
    def reason(self) -> str:
        """What a record says: the words and the place."""
        return f"{self} (at {self.place})" if self.place else str(self)


def _place_of(cause: BaseException) -> str:
    """The last line of the file that the harness called into: what lies deeper is a library's."""
    frames = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(cause.__traceback__)]
    theirs = [(file, line) for file, line in frames if Path(file).parent != HERE and file != contextlib.__file__]
    own = [(file, line) for file, line in theirs if file == theirs[0][0]]
    if not own:
        return ""
    file, line = own[-1]
    return f"{_from_here(file)}:{line}"


def _from_here(file: str) -> str:
    """A path as short as a person would write it."""
    try:
        return os.path.relpath(file) if Path(file).is_relative_to(Path.cwd()) else file
    except OSError:  # the adapter removed the working directory
        return file


class DoesNotFit(Exception):
    """A fault that has nothing to act on in the plan of this case."""


@dataclass(slots=True)
class Stopwatch:
    """Seconds by stage, summed over the runs of a case; `announce` tells the parent which stage is on.

    `exact`: wait for the device at the end of each stage, so that a stage is charged for the work it launched
    and not for the waiting of the next; the bench measures so, a run does not pay for it.
    """

    device: torch.device
    announce: Callable[[str], None]
    seconds: dict[str, float] = field(default_factory=dict)
    exact: bool = False

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        self.announce(name)
        start = time.perf_counter()
        try:
            yield
        finally:
            if self.exact:
                synchronize(self.device)
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start


@dataclass(slots=True)
class Examiner:
    """Runs an adapter on a case's data at a poison level; evidence asks it for as many runs as it needs."""

    case: AttentionCase
    adapter: Adapter
    device: torch.device
    watch: Stopwatch
    mutate_plan: Callable[[Any, AttentionBatch], Any] | None = None

    def run(self, data: LogicalData | None, poison: Poison) -> tuple[AttentionBatch, AttentionOutput]:
        """Build, plan and run once. Raises AdapterFailure."""
        if data is None:
            with self.watch.stage("draw"):
                data = make_data(self.case, self.device)
        batch = self.build(data, poison)
        return batch, self.answer(batch)

    def build(self, data: LogicalData, poison: Poison) -> AttentionBatch:
        with self.watch.stage("build"):
            return build_batch(self.case, self.device, data=data, poison=poison)

    def answer(self, batch: AttentionBatch, *, wait: bool = True) -> AttentionOutput:
        """Plan and run. Raises AdapterFailure. Without `wait` an asynchronous fault shows later, and the output is
        taken as it is on the current stream."""
        with self.watch.stage("plan"), adapter_at_work("plan"):
            plan = self.adapter.plan(batch)
        if self.mutate_plan is not None:
            plan = self.mutate_plan(plan, batch)
            if plan is None:
                raise DoesNotFit("the fault has nothing to act on in this case's plan")
        with self.watch.stage("run"), adapter_at_work("run"):
            output = self.adapter.run(plan, batch)
            check_output(output, batch)
            if wait:
                synchronize(self.device)
            output = kept(output)
            if wait:
                synchronize(self.device)
            return output

    def unsupported(self, case: AttentionCase, label: str) -> str | None:
        """Why the adapter does not take another case, which differs from this one as `label` says, or None.

        Raises AdapterFailure.
        """
        with adapter_at_work(f"capabilities with {label}"):
            return self.adapter.capabilities.unsupported(case)

    def variant(
        self,
        case: AttentionCase,
        data: LogicalData,
        poison: Poison,
        label: str,
        change: Callable[[AttentionBatch], None] | None = None,
        times: int = 1,
    ) -> Iterator[AttentionOutput]:
        """Outputs of `times` runs of one batch of another case, on its own copy of q each. Raises AdapterFailure.

        change: done to the batch before the first run; label: how the case differs, for what an adapter raises.
        A planted fault that has nothing to act on in the other case leaves the kernel right there.
        """
        if hasattr(self.adapter, "prepare"):
            with self.watch.stage("prepare"), adapter_at_work(f"prepare with {label}"):
                self.adapter.prepare(case)
        with self.watch.stage("build"):
            batch = build_batch(case, self.device, data=data, poison=poison)
            if change is not None:
                change(batch)
        for turn in range(times):
            with self.watch.stage("build"):
                if turn:
                    batch.reset()
                batch.data = dataclasses.replace(data, q=data.q.clone())
            with self.watch.stage("plan"), adapter_at_work(f"plan with {label}"):
                plan = self.adapter.plan(batch)
            if self.mutate_plan is not None:
                mutated = self.mutate_plan(plan, batch)
                plan = plan if mutated is None else mutated
            with self.watch.stage("run"), adapter_at_work(f"run with {label}"):
                output = self.adapter.run(plan, batch)
                check_output(output, batch)
                synchronize(self.device)
                output = kept(output)
                synchronize(self.device)
            yield output


def kept(output: AttentionOutput) -> AttentionOutput:
    """Copies, plain tensors without a gradient: what was returned is the adapter's, which may use it again in its next
    call."""
    out, lse = (
        None if each is None else each.detach().as_subclass(torch.Tensor).clone() for each in (output.out, output.lse)
    )
    assert out is not None
    return AttentionOutput(out, lse)


def check_output(output: object, batch: AttentionBatch) -> None:
    """Raises TypeError for what is no output of this case: not tensors, or of another shape, dtype or device."""
    if not isinstance(output, AttentionOutput):
        raise TypeError(f"run returned {type(output).__name__}, the protocol wants AttentionOutput")
    case = batch.case
    shape = (case.total_q, case.num_qo_heads, case.head_dim_vo)
    for name, tensor, wanted in (("out", output.out, shape), ("lse", output.lse, shape[:2])):
        if tensor is None and name == "lse":
            continue
        if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided or tensor.is_nested:
            raise TypeError(f"run returned {name} as {type(tensor).__name__}, the protocol wants a dense tensor")
        if tensor.device.type != batch.device.type:
            raise TypeError(f"run returned {name} on {tensor.device}, the batch is on {batch.device}")
        if not tensor.is_floating_point() or (name == "out" and tensor.dtype != batch.q.dtype):
            raise TypeError(f"run returned {name} of {tensor.dtype}, the protocol wants {batch.q.dtype} (lse: a float)")
        if tuple(tensor.shape) != wanted:
            raise TypeError(f"run returned {name} of shape {list(tensor.shape)}, the protocol wants {list(wanted)}")


@contextmanager
def adapter_at_work(stage: str) -> Iterator[None]:
    """Whatever leaves an adapter as an exception becomes an AdapterFailure; its defaults of torch stay its own."""
    try:
        with adapters_defaults():
            yield
    except (Exception, SystemExit) as cause:
        raise AdapterFailure(stage, cause) from cause


def synchronize(device: torch.device) -> None:
    """Wait for the device, so that an asynchronous fault is charged to the case that caused it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def examine(
    case: AttentionCase,
    adapter: Adapter,
    options: RunOptions,
    device: torch.device,
    *,
    mutate_plan: Callable[[Any, AttentionBatch], Any] | None = None,
    announce: Callable[[str], None] = lambda _stage: None,
    exact_stages: bool = False,
    own: Callable[[], Sequence[Evidence]] | None = None,
) -> Record:
    """The record of one (case, adapter), without versions and stability, which callers add.

    `own`: gives evidence of the case's own data that was gathered before, together with other cases'; the adapter took
    the case then and is not asked again.
    Whatever an adapter does ends in a verdict; a fault that does not fit the case's plan is UNSUPPORTED.
    """
    watch = Stopwatch(device, announce, exact=exact_stages)
    start = time.perf_counter()
    record = Record(case, adapter.name, Verdict.ERROR, fault=options.fault)
    try:
        with adapter_at_work("capabilities"):
            reason = adapter.capabilities.unsupported(case) if own is None else None
    except AdapterFailure as failure:
        return record.replace(verdict=failure.verdict, reason=failure.reason)
    if reason is not None:
        return record.replace(verdict=Verdict.UNSUPPORTED, reason=reason)
    level = case.poison.weaker(adapter.poison)
    examiner = Examiner(case, adapter, device, watch, mutate_plan)
    try:
        if hasattr(adapter, "prepare"):
            with watch.stage("prepare"), adapter_at_work("prepare"):
                adapter.prepare(case)
        outcome = gather_evidence(examiner, options, level, own)
        if own is not None and outcome.failures:
            record = _judge_again(examiner, options, level, outcome, record)
        else:
            record = _judge(examiner, options, level, outcome, record)
    except AdapterFailure as failure:
        record = record.replace(verdict=failure.verdict, reason=failure.reason)
    except DoesNotFit as unfit:
        record = record.replace(verdict=Verdict.UNSUPPORTED, reason=str(unfit))
    watch.seconds["total"] = time.perf_counter() - start
    return record.replace(poison=str(level), seconds={name: round(s, 6) for name, s in watch.seconds.items()})


def _judge_again(examiner: Examiner, options: RunOptions, level: Poison, beside: Outcome, record: Record) -> Record:
    """What failed beside other cases is run alone, by itself in memory and against a golden answer of its own. Right
    then is still WRONG: it is said where, and the runs in fresh processes tell whether it comes again."""
    alone = gather_evidence(examiner, options, level)
    if alone.failures:
        return _judge(examiner, options, level, alone, record)
    message = f"right alone, but in a run beside other cases: {_first_reason(beside)}"
    return _filled(record, beside, Verdict.WRONG, message, beside)


def _judge(examiner: Examiner, options: RunOptions, level: Poison, outcome: Outcome, record: Record) -> Record:
    """PASS, or with the unused slots zeroed: right now is POISONED, still wrong is WRONG."""
    if outcome.failures and level is not Poison.ZERO:
        zeroed = gather_evidence(examiner, options, Poison.ZERO)
        first = outcome.failures[0]
        # Right by luck the second time, or zeros over zeros: nothing leaked.
        leaked_nothing = any(e.kind == DETERMINISM for e in outcome.failures) or only_the_cache(outcome.failures)
        if not zeroed.failures and leaked_nothing:
            return _filled(record, outcome, Verdict.WRONG, first.message, outcome)
        if not zeroed.failures:
            return _filled(
                record, outcome, Verdict.POISONED, f"right with zeroed unused slots, else: {first.message}", zeroed
            )
        return _filled(record, outcome, Verdict.WRONG, _first_reason(zeroed), zeroed)
    if outcome.failures:
        return _filled(record, outcome, Verdict.WRONG, _first_reason(outcome), outcome)
    if not any(e.passed for e in outcome.evidence if e.decides):
        return _filled(record, outcome, Verdict.ERROR, "no evidence applied to this case", outcome)
    return _filled(record, outcome, Verdict.PASS, "", outcome)


def _first_reason(outcome: Outcome) -> str:
    """The first failure, and the figure that people quote."""
    first = outcome.failures[0].message
    if outcome.max_abs_diff is None or "max-abs-diff" in first:
        return first
    return f"{first} (max-abs-diff {outcome.max_abs_diff:.4g})"


def _filled(record: Record, outcome: Outcome, verdict: Verdict, reason: str, figures: Outcome) -> Record:
    """`figures` is the outcome whose max-abs-diff is reported: the zeroed run's where there is one."""
    return record.replace(
        verdict=verdict,
        reason=reason,
        evidence=outcome.evidence,
        max_abs_diff=figures.max_abs_diff,
        atol=outcome.atol,
    )
