"""A kernel worker that also explains: what a session's parent asks of the process that may die."""

from __future__ import annotations

from typing import Any

from cases.schema import AttentionCase
from harness.faults.shots import Range
from harness.fuzzing.explaining import explain_record, which_known
from harness.fuzzing.limits import Declaration, mend
from harness.record import Record
from harness.running.examine import Examiner, Stopwatch
from harness.running.options import RunOptions
from harness.running.pool import WorkerProcess
from harness.running.worker import Worker, is_healthy, main, pick_device

TOLD = ("lines", "fault", "fault_class", "residual", "equals")  # what of an explanation is plain JSON


class FuzzWorker(Worker):
    """Answers, beside the requests of any worker:

    {"op": "explain", "record": {...}, ...}          -> {"explanation": {...}, "healthy": true}
    {"op": "which_known", "known": [[name]], ...}    -> {"known": [[index, name]] or null, "healthy": true}

    {"op": "declare", ...}                           -> {"declaration": {...}}
    {"op": "mend", ...}                              -> {"case": {...} or null}, see harness.fuzzing.limits

    all with "adapter" and "options", and with "case" but for "declare".
    """

    range_: Range | None = None

    def handle(self, request: dict[str, Any]) -> None:
        op = request["op"]
        if op not in ("explain", "which_known", "declare", "mend"):
            super().handle(request)
            return
        options = RunOptions(**request["options"])
        adapter, mutate = self._adapter(request["adapter"], options.fault)
        if op == "declare":
            self.reply({"declaration": Declaration.of(adapter).to_json()})
            return
        case = AttentionCase.from_json(request["case"])
        if op == "mend":
            mended = mend(case, adapter.capabilities)
            self.reply({"case": None if mended is None else mended.to_json()})
            return
        device = pick_device(adapter)
        examiner = Examiner(case, adapter, device, Stopwatch(device, lambda _stage: None), mutate)
        if self.range_ is None:
            self.range_ = Range(options)
        record = Record.from_json(request["record"])
        if op == "which_known":
            known = which_known(examiner, record, request["known"], self.range_)
            self.reply({"known": known, "healthy": is_healthy(device)})
            return
        witnesses = [Record.from_json(body) for body in request["witnesses"]]
        told = explain_record(examiner, record, witnesses, request["known"], self.range_, request["seconds"])
        self.reply({"explanation": {name: getattr(told, name) for name in TOLD}, "healthy": is_healthy(device)})


class FuzzWorkerProcess(WorkerProcess):
    """The parent's end of a FuzzWorker."""

    module = "harness.fuzzing.kernel_worker"


if __name__ == "__main__":
    main(FuzzWorker)
