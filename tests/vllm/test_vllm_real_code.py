"""vLLM's backends on this machine's CPU, over emulated kernels: `make vllm`, then `make test-vllm`.

The release lies in .vllm/0.22.0 with its own interpreter; without it these tests are skipped.
"""

from pathlib import Path

import pytest

from cases.schema import AttentionCase, Execution, Mode, Request
from harness.running.options import Job, RunOptions
from harness.running.pool import WorkerProcess
from harness.verdict import Verdict

PYTHON = Path(__file__).resolve().parents[2] / ".vllm" / "0.22.0" / "env" / "bin" / "python"
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(not PYTHON.exists(), reason="no vLLM here: run `make vllm`"),
]
WINDOW = AttentionCase(requests=(Request(40, 50), Request(100, 3), Request(0, 8)), window_left=31, page_size=16)
DRAFT = AttentionCase(
    requests=(Request(300, 4), Request(5, 4), Request(64, 4)), mode=Mode.DRAFT_EXTEND_V2, page_size=16
)
CAPTURED = Execution(capture_requests=(Request(700, 6), Request(90, 4), Request(200, 8)))
CASES = {
    "window": WINDOW,
    "softcap": WINDOW.replace(logits_soft_cap=5.0),
    "sinks": WINDOW.replace(sinks=True),
    "HND": WINDOW.replace(kv_layout="HND"),
    "draft": DRAFT,
    "verify": DRAFT.replace(mode=Mode.TARGET_VERIFY),
    "decode": AttentionCase(requests=(Request(77, 1), Request(5, 1)), mode=Mode.DECODE, page_size=16),
    "graph of more rows": DRAFT.replace(execution=CAPTURED),
}
MIXED = AttentionCase(requests=(Request(40, 50), Request(100, 1), Request(0, 1), Request(17, 1)), page_size=16)
DECODE = AttentionCase(requests=(Request(77, 1), Request(31, 1)), mode=Mode.DECODE, page_size=16)
OF_FLASHINFER = {
    "prefills": WINDOW,
    "decodes among prefills": MIXED.replace(window_left=31),
    "softcap": MIXED.replace(logits_soft_cap=5.0),
    "HND": MIXED.replace(kv_layout="HND", page_size=64),
    "draft": DRAFT,
    "verify": DRAFT.replace(mode=Mode.TARGET_VERIFY),
    "decodes": DECODE,
    "graph of longer requests": DECODE.replace(
        execution=Execution(capture_requests=(Request(700, 1), Request(90, 1))), window_left=20
    ),
    "graph of shorter requests": DECODE.replace(
        execution=Execution(capture_requests=(Request(1, 1), Request(2, 1))), kv_layout="HND"
    ),
}


@pytest.fixture(scope="module")
def worker():
    made = WorkerProcess(threads=1, python=str(PYTHON))
    yield made
    made.stop()


@pytest.mark.parametrize("name", sorted(CASES))
def test_vllm_is_right(worker, name):
    record = worker.examine(Job(CASES[name], "vllm-flash-attn@emulated"), RunOptions(rerun=False))
    assert record.verdict is Verdict.PASS, record.reason
    assert record.max_abs_diff < 0.02
    assert record.versions["vllm"] == "0.22.0"


@pytest.mark.parametrize("name", sorted(OF_FLASHINFER))
def test_its_flashinfer_backend_is_right(worker, name):
    record = worker.examine(Job(OF_FLASHINFER[name], "vllm-flashinfer@emulated"), RunOptions(rerun=False))
    assert record.verdict is Verdict.PASS, record.reason
    assert record.max_abs_diff < 0.02


def test_a_page_size_that_vllm_refuses_is_not_driven(worker):
    record = worker.examine(Job(WINDOW.replace(page_size=1), "vllm-flash-attn@emulated"), RunOptions(rerun=False))
    assert record.verdict is Verdict.UNSUPPORTED
