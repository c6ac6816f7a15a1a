"""The three seed faults are clearly wrong on the emulated kernels, with stale slots zeroed."""

import pytest
import torch

from cases.batch import build_batch
from cases.schema import AttentionCase, Execution, Mode, Poison, Request
from harness.adapters.registry import load_adapter
from harness.faults.seeds import SEED_FAULTS
from references.golden import golden_attention

FAULTS = {fault.name: fault for fault in SEED_FAULTS}
SKEWED = [(300, 4), (5, 4), (64, 4), (17, 4)]


def difference(adapter_name, case, fault=None):
    """Max-abs-diff of out against golden attention, unused slots zeroed."""
    adapter = load_adapter(adapter_name)
    batch = build_batch(case, poison=Poison.ZERO)
    plan = adapter.plan(batch)
    if fault is not None:
        plan = FAULTS[fault].on_plan(plan, batch)
        assert plan is not None
    output = adapter.run(plan, batch)
    value = (output.out.double() - golden_attention(case, batch.data).out).abs().max().item()
    print(f"{fault or 'right'} on {case.name}, {adapter_name}: max-abs-diff {value:.4g}")
    return value


@pytest.mark.parametrize(
    ("requests", "window"),
    [([(3, 2), (4, 2), (5, 2)], 4), ([(40, 5), (100, 3), (8, 8)], 31), ([(40, 50), (100, 70)], 31)],
)
def test_swa_merge_window_missing(requests, window):
    case = AttentionCase(requests=requests, window_left=window)
    assert FAULTS["swa-merge-window-missing"].blind(case) is None
    assert difference("flashinfer-swa-merge@emulated", case) <= 2e-2
    assert difference("flashinfer-swa-merge@emulated", case, "swa-merge-window-missing") >= 0.2


@pytest.mark.parametrize("adapter", ["flash-attn-2@emulated", "flash-attn-3@emulated", "flash-attn-4@emulated"])
@pytest.mark.parametrize("execution", [Execution(), Execution(capture_requests=(Request(80, 6),) * 4)])
@pytest.mark.parametrize("window", [None, 31])
def test_draft_extend_faults(adapter, execution, window):
    case = AttentionCase(requests=SKEWED, mode=Mode.DRAFT_EXTEND_V2, window_left=window, execution=execution)
    assert difference(adapter, case) <= 2e-2
    assert difference(adapter, case, "draft-extend-prefix-only") >= 0.5
    assert difference(adapter, case, "draft-extend-double-count") >= 0.2


def test_prefix_only_leaves_a_request_without_prefix_empty():
    case = AttentionCase(requests=[(0, 3), (9, 2)], mode=Mode.DRAFT_EXTEND_V2)
    adapter, batch = load_adapter("flash-attn-3@emulated"), build_batch(case)
    plan = FAULTS["draft-extend-prefix-only"].on_plan(adapter.plan(batch), batch)
    assert plan.seqused_k.tolist() == [0, 9]
    output = adapter.run(plan, batch)
    assert (output.out[:3] == 0).all()
    assert torch.isfinite(output.out).all()


def test_double_count_reads_slots_that_the_request_owns():
    case = AttentionCase(requests=[(13, 2), (0, 5)], mode=Mode.DRAFT_EXTEND_V2, page_size=16)
    adapter, batch = load_adapter("flash-attn-3@emulated"), build_batch(case)
    plan = FAULTS["draft-extend-double-count"].on_plan(adapter.plan(batch), batch)
    assert plan.seqused_k.tolist() == [17, 10]
    assert plan.page_table.shape[1] == 2
    assert batch.paging.owned == (2, 1)


def test_a_fault_that_does_not_fit_says_so():
    merge, flash = load_adapter("flashinfer-swa-merge@emulated"), load_adapter("flash-attn-3@emulated")
    batch = build_batch(AttentionCase(requests=[(5, 3)]))
    assert FAULTS["swa-merge-window-missing"].on_plan(merge.plan(batch), batch) is None  # no window to miss
    assert FAULTS["swa-merge-window-missing"].on_plan(flash.plan(batch), batch) is None
    assert FAULTS["draft-extend-prefix-only"].on_plan(merge.plan(batch), batch) is None
    assert FAULTS["draft-extend-double-count"].on_plan(merge.plan(batch), batch) is None
    unseen = AttentionCase(requests=[(0, 5)], window_left=31)
    assert FAULTS["swa-merge-window-missing"].blind(unseen) is not None
    assert difference("flashinfer-swa-merge@emulated", unseen, "swa-merge-window-missing") <= 2e-2
