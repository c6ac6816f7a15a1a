"""What is new is looked for beside what is known, and named only if it does what was seen."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cases import AttentionCase, Request
from harness.diagnosis.explaining import Explanation
from harness.faults.registry import load_fault, plant
from harness.faults.shots import Range
from harness.fuzzing.explaining import explain_record
from harness.record import Record
from harness.running.examine import Examiner, Stopwatch
from harness.verdict import Verdict

KNOWN = [["last-partial-page-missing"]]


def explained(adapter: object, case: AttentionCase, change: object = None) -> Explanation:
    device = torch.device("cpu")
    examiner = Examiner(case, adapter, device, Stopwatch(device, lambda stage: None), change)  # type: ignore[arg-type]
    record = Record(case, examiner.adapter.name, Verdict.WRONG)
    return explain_record(examiner, record, [], KNOWN, Range(), seconds=60)


def test_a_second_fault_is_named_beside_a_known_one() -> None:
    case = AttentionCase(requests=(Request(30, 3), Request(21, 3)), window_left=9)
    fault = load_fault("last-partial-page-missing+scale-doubled")
    adapter, change = plant("flash-attn-3@emulated", fault)
    said = explained(adapter, case, change)
    assert said.fault == "scale-doubled"
    assert "reproduced together with what is known: last-partial-page-missing" in said.lines[0]


def test_none_is_named_that_adds_keys_where_none_too_many_were_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "diagnosis"))
    from black_box import LastPartialPageSkipped

    said = explained(LastPartialPageSkipped(), AttentionCase(requests=(Request(40, 5),)))
    assert said.fault is None
    assert "from the page edge at 32" in said.lines[0]
