"""A kernel worker: one process that examines cases for a parent, and may die doing so.

It reads one JSON request a line from standard input and answers on the pipe that was standard
output when it started; what a library prints goes to standard error instead. It needs torch and the
library under test, nothing else, so it can live in another environment than its parent.

    parent -> {"op": "examine", "case": {...}, "adapter": "...", "options": {...}}
    worker -> {"stage": "run"} ...                        where it is, for the parent's time limits; at "start" with the
                                                          "device", for the record of a case that ends the process
    worker -> {"record": {...}, "healthy": true}          or {"usage_error": "..."} or {"error": "..."}

"examine_many" takes "cases" and "suites". It is answered by {"settled": {...}, "index": n} for each case that needs no
second look, as soon as it is judged, and at the end by "records" of all, which is null if the device was lost.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TextIO

import torch

from cases.schema import AttentionCase
from harness.adapter_check import refuse_incomplete
from harness.adapters.protocol import Adapter
from harness.adapters.registry import load_adapter
from harness.environment import installed_versions
from harness.errors import UsageError
from harness.faults.registry import equip
from harness.record import FIRST_SEEN, Record
from harness.running.examine import Examiner, Stopwatch, examine, synchronize
from harness.running.options import EXPLAINED, RunOptions
from harness.running.together import examine_together
from harness.running.torch_state import adapters_defaults
from harness.verdict import Verdict

EXPLAIN_SECONDS = 20.0


class Worker:
    """Keeps adapters between cases: their workspaces and compiled kernels are what is slow to make."""

    def __init__(self, reply: Callable[[dict[str, Any]], None]) -> None:
        self.reply = reply
        self.adapters: dict[tuple[str, str | None], tuple[Adapter, Any]] = {}
        self.explained: Counter[str] = Counter()
        self.folder = os.getcwd()

    def handle(self, request: dict[str, Any]) -> None:
        if request["op"] == "ping":
            self.reply({"pong": installed_versions()})
            return
        options = RunOptions(**request["options"])
        adapter, mutate = self._adapter(request["adapter"], options.fault)
        device = pick_device(adapter)
        self.reply({"stage": "start", "device": device_name(device)})
        if request["op"] == "examine_many":
            self._examine_many(request, options, adapter, device)
            return
        case = AttentionCase.from_json(request["case"])
        record = examine(case, adapter, options, device, mutate_plan=mutate, announce=self._announce)
        record = self._signed(record, request["adapter"], request.get("suite"), device)
        lost = device_error(device)
        if lost is None:
            record = self._explained(record, options, adapter, device, mutate)
        elif record.verdict is Verdict.CRASH:
            # What raised is the call that happened to notice first, another one for another case.
            record = record.replace(reason=f"the device was lost: {lost}{FIRST_SEEN}{record.reason}")
        self.reply({"record": record.to_json(), "healthy": is_healthy(device)})

    def _examine_many(
        self, request: dict[str, Any], options: RunOptions, adapter: Adapter, device: torch.device
    ) -> None:
        """Records of all cases. None at the end if the device was lost: then nobody knows by which case, but what
        passed before has passed."""
        cases = [AttentionCase.from_json(body) for body in request["cases"]]
        signed: dict[int, Record] = {}

        def tell(index: int, record: Record) -> None:
            signed[index] = self._signed(record, request["adapter"], request["suites"][index], device)
            if record.verdict in (Verdict.PASS, Verdict.UNSUPPORTED):
                self.reply({"settled": signed[index].to_json(), "index": index})

        try:
            examine_together(cases, adapter, options, device, announce=self._announce, on_record=tell)
        except RuntimeError:
            if is_healthy(device):
                raise
        if not is_healthy(device):
            self.reply({"records": None, "healthy": False})
            return
        explained = [self._explained(record, options, adapter, device, None) for _, record in sorted(signed.items())]
        self.reply({"records": [record.to_json() for record in explained], "healthy": True})

    def _announce(self, stage: str) -> None:
        self.reply({"stage": stage})

    def _signed(self, record: Record, adapter: str, suite: str | None, device: torch.device) -> Record:
        return record.replace(
            versions=installed_versions(),
            device=device_name(device),
            time=datetime.now(UTC).isoformat(timespec="seconds"),
            suite=suite,
            adapter=adapter,  # the name it can be loaded by again, for an outside file too
        )

    def _explained(
        self, record: Record, options: RunOptions, adapter: Adapter, device: torch.device, mutate: Any
    ) -> Record:
        """The record with an explanation, for the first few of an adapter; `attn-harness explain` has more time."""
        if not options.explain or record.verdict not in (Verdict.WRONG, Verdict.POISONED):
            return record
        if self.explained[record.adapter] >= EXPLAINED:
            return record
        self.explained[record.adapter] += 1
        from harness.diagnosis.explaining import explain  # heavy, and most runs never need it

        self.reply({"stage": "explain", "judged": record.to_json()})
        examiner = Examiner(record.case, adapter, device, Stopwatch(device, lambda _stage: None), mutate)
        return record.replace(explanation=explain(examiner, record, seconds=EXPLAIN_SECONDS).lines)

    def _adapter(self, spec: str, fault: str | None) -> tuple[Adapter, Any]:
        if (spec, fault) not in self.adapters:
            os.chdir(self.folder)  # which an adapter before may have left: a spec is a path from here
            with adapters_defaults():
                equipped = (load_adapter(spec), None) if fault is None else equip(spec, fault)
            refuse_incomplete(spec, equipped[0])
            self.adapters[spec, fault] = equipped
        return self.adapters[spec, fault]


def pick_device(adapter: Adapter) -> torch.device:
    """The device an adapter runs on: CUDA if it can and there is one."""
    devices: tuple[str, ...] = getattr(adapter, "devices", ("cuda",))
    if "cuda" in devices and torch.cuda.is_available():
        return torch.device("cuda", 0)
    if "cpu" in devices:
        return torch.device("cpu")
    raise UsageError(f"adapter {adapter.name} needs a CUDA GPU and this process sees none.")


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def device_error(device: torch.device) -> str | None:
    """The CUDA error that has stuck to the process, if one has: everything after it would fail too."""
    try:
        synchronize(device)
    except RuntimeError as error:
        return str(error).partition("\n")[0]
    return None


def is_healthy(device: torch.device) -> bool:
    return device_error(device) is None


def _take_stdout() -> TextIO:
    """The reply pipe; whatever prints to standard output from now on goes to standard error."""
    pipe = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return pipe


def serve(requests: TextIO, pipe: TextIO, kind: type[Worker] = Worker) -> None:
    """Answer requests until the parent closes the pipe."""

    owner = os.getpid()
    number = 0

    def reply(message: dict[str, Any]) -> None:
        if os.getpid() != owner:
            os._exit(1)  # a child that an adapter forked must not answer in our name
        pipe.write(json.dumps({**message, "request": number}) + "\n")
        pipe.flush()

    worker = kind(reply)
    for line in requests:
        try:
            request = json.loads(line)
            number = request["request"]
            worker.handle(request)
        except UsageError as problem:
            reply({"usage_error": str(problem)})
        except Exception as problem:  # the harness's own fault: told as ERROR, with its place
            traceback.print_exc()
            place = traceback.extract_tb(problem.__traceback__)[-1]
            reply({"error": f"{type(problem).__name__}: {problem} ({place.filename}:{place.lineno})"})


def main(kind: type[Worker] = Worker) -> None:
    threads = os.environ.get("ATTN_HARNESS_THREADS")
    if threads:
        torch.set_num_threads(int(threads))
    serve(sys.stdin, _take_stdout(), kind)


if __name__ == "__main__":
    main()
