"""A kernel worker that also explains: what a session's parent asks of the process that may die."""

from __future__ import annotations

import dataclasses
from typing import Any

from cases.schema import AttentionCase
from harness.faults.shots import Range
from harness.fuzzing.explaining import explain_record, which_known
from harness.record import Record
from harness.running.examine import Examiner, Stopwatch
from harness.running.options import RunOptions
from harness.running.pool import WorkerProcess
from harness.running.worker import Worker, main, pick_device


class FuzzWorker(Worker):
    """Answers, beside the requests of any worker:

    {"op": "explain", "record": {...}, ...}          -> {"explanation": {...}}
    {"op": "which_known", "known": [[name]], ...}    -> {"known": index or null}

    both with "case", "adapter" and "options".
    """

    range_: Range | None = None

    def handle(self, request: dict[str, Any]) -> None:
        if request["op"] not in ("explain", "which_known"):
            super().handle(request)
            return
        case = AttentionCase.from_json(request["case"])
        options = RunOptions(**request["options"])
        adapter, mutate = self._adapter(request["adapter"], options.fault)
        device = pick_device(adapter)
        examiner = Examiner(case, adapter, device, Stopwatch(device, lambda _stage: None), mutate)
        if self.range_ is None:
            self.range_ = Range(options)
        if request["op"] == "which_known":
            self.reply({"known": which_known(examiner, request["known"], self.range_)})
            return
        record = Record.from_json(request["record"])
        told = explain_record(examiner, record, self.range_, request["seconds"])
        self.reply({"explanation": dataclasses.asdict(told)})


class FuzzWorkerProcess(WorkerProcess):
    """The parent's end of a FuzzWorker."""

    module = "harness.fuzzing.kernel_worker"


if __name__ == "__main__":
    main(FuzzWorker)
