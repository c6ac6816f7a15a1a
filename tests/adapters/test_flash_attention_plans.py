"""FlashAttention plans and captures against values worked out by hand."""

import pytest

from cases.batch import build_batch
from cases.schema import AttentionCase, Execution, PageOrder
from harness.adapters.flash_attention_plans import capture_metadata, plan_capture, plan_flash_attention


def batch_of(requests, **changes):
    changes = {"page_order": PageOrder.CONTIGUOUS, "page_size": 4, **changes}
    return build_batch(AttentionCase(requests=requests, **changes))


def test_the_kernel_reads_prefix_and_extend():
    batch = batch_of([(7, 2), (0, 3), (5, 0)], window_left=4)
    plan = plan_flash_attention(batch)
    assert plan.cu_seqlens_q.tolist() == [0, 2, 5, 5]
    assert plan.seqused_k.tolist() == [9, 3, 5]
    assert (plan.max_seqlen_q, plan.max_seqlen_k) == (3, 9)  # not max(P) + max(E) = 10
    # ceil(9 / 4) = 3 columns; request 0 owns ceil(11 / 4) = 3 pages, request 1 two, request 2 two.
    assert plan.page_table.tolist() == [[1, 2, 3], [4, 5, 0], [6, 7, 0]]
    assert plan.append_slots is not None
    # positions 7, 8 of request 0 (pages 1, 2, 3 of 4 slots) and 0..2 of request 1 (page 4)
    assert plan.append_slots.tolist() == [2 * 4 + 3, 3 * 4 + 0, 16, 17, 18]


@pytest.mark.parametrize(
    ("window_left", "causal", "window_size"),
    [(4, True, (4, 0)), (None, True, (-1, -1)), (0, True, (0, 0)), (4, False, (4, -1)), (None, False, (-1, -1))],
)
def test_window_size(window_left, causal, window_size):
    plan = plan_flash_attention(batch_of([(5, 2)], window_left=window_left, causal=causal))
    assert plan.window_size == window_size
    assert plan.causal is causal


def test_capture_covers_both_batches():
    captured = Execution(capture_requests=((1, 6), (30, 2)))
    batch = batch_of([(7, 2), (0, 3)], execution=captured)
    capture = plan_capture(batch)
    assert (capture.total_q, capture.max_seqlen_q) == (8, 6)
    assert capture.columns == 9  # ceil((32 + 2) / 4), more than the live 3
    cu_seqlens_q, seqused_k, page_table = capture_metadata(capture, batch.paging.num_pages, batch.device)
    assert cu_seqlens_q.tolist() == [0, 6, 8]
    assert seqused_k.tolist() == [7, 32]
    assert page_table.shape == (2, 9)
    assert 0 <= int(page_table.min()) <= int(page_table.max()) < batch.paging.num_pages
