"""FlashInfer plans against values worked out by hand."""

import pytest
import torch

from cases.batch import build_batch
from cases.schema import AttentionCase, Execution, PageOrder
from harness.adapters.flashinfer_plans import plan_single_paged, plan_swa_merge


def batch_of(requests, **changes):
    changes = {"page_order": PageOrder.CONTIGUOUS, "page_size": 4, **changes}
    return build_batch(AttentionCase(requests=requests, **changes))


def test_merge_legs_of_a_windowed_batch():
    # prefixes 3, 7 and extends 2, 3 under L = 4: reachable prefixes are [0, 3) and [3, 7).
    batch = batch_of([(3, 2), (7, 3)], window_left=4)
    plan = plan_swa_merge(batch)

    assert plan.ragged.qo_indptr.tolist() == [0, 2, 5]
    assert plan.ragged.kv_indptr.tolist() == [0, 2, 5]
    assert (plan.ragged.causal, plan.ragged.window_left, plan.ragged.run_window_left) == (True, 4, None)

    leg = plan.paged
    assert leg is not None
    assert leg.rows is None  # both requests take part, in order
    assert leg.qo_indptr.tolist() == [0, 2, 5]
    assert leg.kv_indptr.tolist() == [0, 3, 7]
    assert leg.kv_last_page_len.tolist() == [1, 1]
    assert (leg.page_size, leg.causal, leg.window_left) == (1, False, -1)
    # Pages in order from page 1 on: request 0 owns slots 4..11 (2 pages), request 1 slots 12..27.
    assert leg.kv_indices.tolist() == [4, 5, 6, 15, 16, 17, 18]
    # Row q sees prefix keys k >= q - 4. Request 0: q = 3 from -1, q = 4 from 0 -> all open.
    # Request 1, keys 3..6: q = 7 from 3, q = 8 from 4, q = 9 from 5.
    assert leg.custom_mask is not None
    assert leg.custom_mask.tolist() == [True] * 6 + [
        True, True, True, True,
        False, True, True, True,
        False, False, True, True,
    ]  # fmt: skip


def test_no_mask_where_everything_in_reach_is_open():
    plan = plan_swa_merge(batch_of([(3, 2), (2, 1)], window_left=4))
    assert plan.paged is not None
    assert plan.paged.custom_mask is None


def test_only_requests_with_reachable_prefix_and_new_rows_take_the_paged_leg():
    # (0, 5): no prefix. (6, 0): no row. (2, 3): takes part. Rows are those of the third request.
    plan = plan_swa_merge(batch_of([(0, 5), (6, 0), (2, 3)], window_left=10))
    assert plan.paged is not None
    assert plan.paged.rows is not None
    assert plan.paged.rows.tolist() == [5, 6, 7]
    assert plan.paged.qo_indptr.tolist() == [0, 3]
    assert plan.paged.kv_indptr.tolist() == [0, 2]
    assert plan.ragged.qo_indptr.tolist() == [0, 5, 5, 8]


@pytest.mark.parametrize(("requests", "window"), [([(0, 70)], None), ([(0, 3), (9, 0)], 31), ([(20, 3)], 0)])
def test_no_paged_leg_where_no_cached_key_is_visible(requests, window):
    assert plan_swa_merge(batch_of(requests, window_left=window)).paged is None


def test_without_a_window_the_whole_prefix_is_read_unmasked():
    plan = plan_swa_merge(batch_of([(9, 2)], window_left=None))
    assert plan.ragged.window_left == -1
    assert plan.paged is not None
    assert plan.paged.kv_indptr.tolist() == [0, 9]
    assert plan.paged.custom_mask is None


def test_single_paged_pass_covers_prefix_and_extend():
    # S = 5, 10 and 0 with pages of 4: 2, 3 and 0 pages, last pages 1, 2 and 0 full.
    batch = batch_of([(3, 2), (7, 3), (0, 0)], window_left=4, logits_soft_cap=30.0, sm_scale=0.5)
    plan = plan_single_paged(batch)
    leg = plan.paged
    assert leg.kv_indptr.tolist() == [0, 2, 5, 5]
    assert leg.kv_last_page_len.tolist() == [1, 2, 0]
    assert leg.kv_indices.tolist() == [1, 2, 3, 4, 5]
    assert leg.qo_indptr.tolist() == [0, 2, 5, 5]
    assert (leg.causal, leg.window_left, leg.logits_soft_cap, leg.sm_scale) == (True, 4, 30.0, 0.5)
    assert plan.append.batch_indices.tolist() == [0, 0, 1, 1, 1]
    assert plan.append.positions.tolist() == [3, 4, 7, 8, 9]
    assert plan.append.batch_indices.dtype is torch.int32


def test_execution_reaches_the_plan():
    batch = batch_of([(9, 2)], execution=Execution(num_splits=1, workspace="dirty"))
    assert plan_swa_merge(batch).dirty_workspace
    assert plan_swa_merge(batch).ragged.disable_split_kv
    assert plan_single_paged(batch).paged.disable_split_kv
