"""The three seed faults: how two serving paths really were wrong, as changes of a typed plan.

They act on plans, so the same fault runs on the emulated and on the real kernels. Every slot that
they make a kernel read belongs to the request's own pages and exists: wrong, but legal.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from cases.batch import AttentionBatch
from cases.schema import AttentionCase
from harness.adapters.flash_attention_plans import FlashAttentionPlan, trimmed
from harness.adapters.flashinfer_plans import SwaMergePlan, token_pass
from harness.faults.protocol import Fault, FaultClass


# -- flashinfer swa merge ------------------------------------------------------------------------
def drop_window_from_merge(plan: Any, batch: AttentionBatch) -> SwaMergePlan | None:
    """Ragged leg without a window; paged leg over [max(P-L, 0), S) open to every query.

    The paged leg runs before the new rows are written, so slots [P, S) hold stale data, and the new
    keys are counted twice. As the engine did, the paged leg is skipped when no request has a prefix.
    """
    if not isinstance(plan, SwaMergePlan) or batch.case.window_left is None:
        return None
    reach, requests = batch.case.window_left, batch.case.requests
    ragged = dataclasses.replace(plan.ragged, window_left=-1)
    if not any(r.prefix_len for r in requests):
        return dataclasses.replace(plan, ragged=ragged, paged=None)
    takes_part = [i for i, r in enumerate(requests) if r.extend_len]
    lows = [max(requests[i].prefix_len - reach, 0) for i in takes_part]
    highs = [requests[i].kv_len for i in takes_part]
    return dataclasses.replace(plan, ragged=ragged, paged=token_pass(batch, takes_part, lows, highs))


def _merge_is_blind(case: AttentionCase) -> str | None:
    if case.window_left is None:
        return "no sliding window"
    if not any(r.prefix_len for r in case.requests) and case.max_extend_len <= case.window_left + 1:
        return "no prefix, and every extend lies within its window"
    return None


# -- flash attention draft extend ----------------------------------------------------------------
def _with_lengths(plan: FlashAttentionPlan, batch: AttentionBatch, lens: list[int]) -> FlashAttentionPlan:
    """The plan with `lens` keys per request, its host maximum and page table to match."""
    longest = max(lens)
    return dataclasses.replace(
        plan,
        seqused_k=plan.seqused_k.new_tensor(lens),
        max_seqlen_k=max(1, longest),
        page_table=trimmed(batch.paging, longest),
    )


def read_prefix_only(plan: Any, batch: AttentionBatch) -> FlashAttentionPlan | None:
    """n = P: `seq_lens` taken for the whole length while it holds the prefix.

    Queries move back by E and the new rows cannot be seen. A request without a prefix has n = 0, which
    the kernels allow: its rows have no key.
    """
    if not isinstance(plan, FlashAttentionPlan):
        return None
    return _with_lengths(plan, batch, [r.prefix_len for r in batch.case.requests])


def count_extend_twice(plan: Any, batch: AttentionBatch) -> FlashAttentionPlan | None:
    """n = P + 2E: the extend added to a length that already had it.

    Queries move forward by E and see E stale slots, which every request owns (cases/schema.py,
    pages_owned), through page-table columns up to P + 2E.
    """
    if not isinstance(plan, FlashAttentionPlan):
        return None
    return _with_lengths(plan, batch, [r.kv_len + r.extend_len for r in batch.case.requests])


SEED_FAULTS: tuple[Fault, ...] = (
    Fault(
        name="swa-merge-window-missing",
        fault_class=FaultClass.WINDOW,
        summary="neither leg of ragged + paged + merge_state is windowed, and the paged leg reads stale slots",
        reports=("sglang PR #26513",),
        on_plan=drop_window_from_merge,
        blind=_merge_is_blind,
    ),
    Fault(
        name="draft-extend-prefix-only",
        fault_class=FaultClass.EXTENT,
        summary="the kernel reads P keys where the cache holds P + E: new rows unseen, queries E too early",
        reports=("sglang PR #26512", "sglang PR #26651"),
        on_plan=read_prefix_only,
    ),
    Fault(
        name="draft-extend-double-count",
        fault_class=FaultClass.EXTENT,
        summary="the kernel reads P + 2E keys: E stale slots are seen, queries E too late",
        reports=("sglang PR #26628", "sglang PR #26512"),
        on_plan=count_extend_twice,
    ),
)
