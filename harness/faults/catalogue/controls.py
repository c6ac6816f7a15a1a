"""Equivalent mutants: changes that leave the answer as it is. A harness that reports one is wrong."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from cases.batch import AttentionBatch
from harness.adapters.flash_attention_plans import FlashAttentionPlan
from harness.emulation.hooks import RequestCall, Tile
from harness.faults.catalogue import building as b
from harness.faults.catalogue.garbage import to_page_end
from harness.faults.protocol import Fault, FaultClass

Bounds = list[tuple[int, int]]


def from_first_key(request: RequestCall, low: int, high: int) -> tuple[int, int]:
    del request, low
    return 0, high


def transformed_then_masked(tile: Tile, raw: Tensor, scores: Tensor) -> Tensor:
    """A logits hook runs over hidden keys as well; the mask is applied to its result."""
    del raw
    fill = tile.request.launch.mask_fill
    hidden = scores == fill
    return torch.where(hidden, 1e30, scores).masked_fill(hidden, fill)


def halves(request: RequestCall, bounds: Bounds) -> Bounds:
    del request
    return [part for low, high in bounds for part in ((low, (low + high) // 2), ((low + high) // 2, high))]


def one_split(request: RequestCall, bounds: Bounds) -> Bounds:
    del request
    return [(bounds[0][0], bounds[-1][1])] if bounds else bounds


def last_split_first(request: RequestCall, bounds: Bounds) -> Bounds:
    del request
    return bounds[::-1]


def garbage_without_weight(request: RequestCall, out: Tensor, lse: Tensor, empty: Tensor) -> tuple[Tensor, Tensor]:
    """Rows without a key hold some finite output; their LSE gives it no weight in a merge."""
    del request
    return torch.where(empty[:, None, None], 7.0, out), lse


def other_table_tail(plan: FlashAttentionPlan, batch: AttentionBatch) -> FlashAttentionPlan:
    """Table entries beyond each request's pages name other pages."""
    table = plan.page_table.clone()
    for i, request in enumerate(batch.case.requests):
        table[i, -(-request.kv_len // batch.case.page_size) :] = table[0, 0]
    return dataclasses.replace(plan, page_table=table)


def larger_maxima(plan: FlashAttentionPlan, batch: AttentionBatch) -> FlashAttentionPlan:
    del batch
    return dataclasses.replace(plan, max_seqlen_k=2 * plan.max_seqlen_k, max_seqlen_q=2 * plan.max_seqlen_q)


def _control(name: str, summary: str, **fields: object) -> Fault:
    return Fault(name, FaultClass.OTHER, summary, is_control=True, **fields)  # type: ignore[arg-type]


FAULTS: tuple[Fault, ...] = (
    _control(
        "control-window-iterates-too-far",
        "tiles left of the window are visited too; the element mask still holds",
        reports=("flashinfer PR #714", "flashinfer PR #563"),
        on_kernel=b.kernel(key_range=from_first_key),
    ),
    _control(
        "control-hook-before-chunk-mask",
        "a logits hook sees keys outside its chunk, which are masked afterwards",
        reports=("flashinfer PR #3890",),
        on_kernel=b.kernel(score=transformed_then_masked),
    ),
    _control(
        "control-split-count-from-host-bound",
        "twice as many splits, from an upper bound of the length: other roundings, same answer",
        reports=("flashinfer #4647",),
        on_kernel=b.kernel(split=halves),
    ),
    _control(
        "control-split-from-heuristic",
        "one split where several were asked for: other roundings, same answer",
        reports=("sglang PR #26412",),
        on_kernel=b.kernel(split=one_split),
    ),
    _control(
        "control-splits-in-other-order",
        "splits are reduced last first",
        on_kernel=b.kernel(split=last_split_first),
    ),
    _control(
        "control-garbage-of-no-weight",
        "rows without a key hold finite garbage that the merge gives no weight",
        on_kernel=b.kernel(empty_row=garbage_without_weight),
        adapters=b.FLASHINFER_MERGE,
    ),
    _control(
        "control-page-tail-loaded",
        "the last page is loaded whole; its finite tail has weight 0",
        on_kernel=b.kernel(key_range=to_page_end),
        adapters=("flash-attn-*", "flashinfer-paged-fa3*"),
    ),
    _control(
        "control-table-tail-rewritten",
        "page table entries beyond the live length name other pages",
        on_plan=b.by_plan(flash=other_table_tail),
        adapters=b.FLASH_ATTENTION,
    ),
    _control(
        "control-larger-host-maxima",
        "max_seqlen_q and max_seqlen_k are upper bounds",
        on_plan=b.by_plan(flash=larger_maxima),
        adapters=b.FLASH_ATTENTION,
    ),
    _control(
        "control-window-longer-than-all",
        "no window is planned as one that reaches beyond every key",
        on_plan=b.replanned(lambda case: {"window_left": case.max_kv_len} if case.window_left is None else {}),
    ),
)
