"""Extent: the wrong number of keys, rows or pages, and queries that stand at the wrong place among the keys."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from cases.batch import AttentionBatch
from cases.schema import AttentionCase, Mode, PageOrder, Request
from harness.adapters.flash_attention_plans import FlashAttentionPlan
from harness.adapters.flashinfer_plans import SinglePagedPlan, SwaMergePlan
from harness.emulation.hooks import RequestCall
from harness.faults.catalogue import building as b
from harness.faults.catalogue.lengths import true_lengths, with_lengths, with_pages
from harness.faults.protocol import Fault, FaultClass

PAD_ROWS = 4  # rows that a draft step is padded to
ROW_STRIDE = 8

DRAFT = AttentionCase(requests=(Request(3, 2), Request(4, 2)), mode=Mode.DRAFT_EXTEND_V2, page_size=4)


# -- lengths -------------------------------------------------------------------------------------
def _without_last_partial_page(batch: AttentionBatch) -> list[int]:
    size = batch.case.page_size
    return [n // size * size if n >= size else n for n in true_lengths(batch)]


def _longest(batch: AttentionBatch) -> list[int]:
    return [batch.case.max_kv_len if r.kv_len else 0 for r in batch.case.requests]


def _surplus_page(batch: AttentionBatch) -> list[int]:
    size = batch.case.page_size
    return [n + size if n and n % size == 0 else n for n in true_lengths(batch)]


def _whole_pages(batch: AttentionBatch) -> list[int]:
    return [b.round_up(n, batch.case.page_size) for n in true_lengths(batch)]


def stale_maximum(plan: FlashAttentionPlan, batch: AttentionBatch) -> FlashAttentionPlan | None:
    """max_seqlen_k of the draft step before: one key less."""
    if batch.case.execution.uses_graph or plan.max_seqlen_k < 2:
        return None
    return dataclasses.replace(plan, max_seqlen_k=plan.max_seqlen_k - 1)


def _longest_sees_last(case: AttentionCase) -> bool:
    return not case.execution.uses_graph and any(r.kv_len == case.max_kv_len > 1 for r in b.active(case))


def _ragged_lengths(case: AttentionCase) -> bool:
    return any(r.kv_len < case.max_kv_len for r in b.active(case))


def _partial_page(case: AttentionCase) -> bool:
    return any(r.kv_len % case.page_size for r in b.active(case))


# -- rows and causality --------------------------------------------------------------------------
def extend_keys_again(request: RequestCall, bounds: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The new keys once more, as a split of their own."""
    if not b.is_paged(request.launch):
        return bounds
    high = max(end for _, end in bounds)
    return [*bounds, (max(bounds[0][0], request.kv_len - request.qo_len), high)]


def padded_queries(request: RequestCall, positions: Tensor) -> Tensor:
    """Queries aligned as if the request had PAD_ROWS-padded rows while its keys were not padded."""
    return positions - (b.round_up(request.qo_len, PAD_ROWS) - request.qo_len)


def _rows_need_padding(case: AttentionCase) -> bool:
    return case.causal and any(r.extend_len % PAD_ROWS for r in b.active(case))


def padded_rows(request: RequestCall, start: int) -> int:
    return start if request.index == 0 else request.index * b.round_up(request.qo_len, ROW_STRIDE)


def _rows_move(case: AttentionCase) -> bool:
    start = 0
    for index, request in enumerate(case.requests):
        if request.extend_len and index and start != index * b.round_up(request.extend_len, ROW_STRIDE):
            return True
        start += request.extend_len
    return False


def _merge_causal(plan: SwaMergePlan, causal: bool) -> SwaMergePlan:
    return dataclasses.replace(plan, ragged=dataclasses.replace(plan.ragged, causal=causal))


def _paged_causal(plan: SinglePagedPlan, causal: bool) -> SinglePagedPlan:
    return dataclasses.replace(plan, paged=dataclasses.replace(plan.paged, causal=causal))


def _flash_causal(plan: FlashAttentionPlan, causal: bool) -> FlashAttentionPlan:
    left = plan.window_size[0]
    window = (left, 0 if causal else -1) if left >= 0 else (-1, -1)
    return dataclasses.replace(plan, causal=causal, window_size=window)


def _causality(was: bool) -> Any:
    """A plan fault that turns `causal` from `was` to the other."""

    def change(set_causal: Any) -> Any:
        return lambda plan, batch: set_causal(plan, not was) if batch.case.causal is was else None

    return b.by_plan(flash=change(_flash_causal), paged=change(_paged_causal), merge=change(_merge_causal))


# -- pages ---------------------------------------------------------------------------------------
def contiguous_pages(table: Tensor, used: list[int]) -> Tensor:
    columns = torch.arange(table.shape[1], device=table.device, dtype=table.dtype)
    last = int(table.max())
    for i, count in enumerate(used):
        table[i, :count] = (table[i, 0] + columns[:count]).clamp(max=last)
    return table


def sorted_pages(table: Tensor, used: list[int]) -> Tensor:
    for i, count in enumerate(used):
        table[i, :count] = table[i, :count].sort().values
    return table


def swapped_rows(table: Tensor, used: list[int]) -> Tensor:
    del used
    return table.roll(1, 0)


def _several_pages_out_of_order(case: AttentionCase) -> bool:
    scattered = case.page_order not in (PageOrder.CONTIGUOUS, PageOrder.FAR_END)
    return scattered and any(n > case.page_size for n in (r.kv_len for r in b.active(case)))


def page_not_advanced(plan: SinglePagedPlan, batch: AttentionBatch) -> SinglePagedPlan | None:
    """A request that has just begun a page is taken to end on the one before; the next start there."""
    size, starts = batch.case.page_size, plan.paged.kv_indptr.tolist()
    lag, moved = 0, [0]
    for length, end in zip(true_lengths(batch), starts[1:], strict=True):
        lag += int(length > size and length % size == 1 % size)
        moved.append(end - lag)
    if lag == 0:
        return None
    leg = dataclasses.replace(plan.paged, kv_indptr=torch.tensor(moved, dtype=torch.int32))
    return dataclasses.replace(plan, paged=leg)


def _begins_a_page(case: AttentionCase) -> bool:
    return any(r.kv_len > case.page_size and r.kv_len % case.page_size == 1 % case.page_size for r in case.requests)


def append_in_slot_order(plan: FlashAttentionPlan, batch: AttentionBatch) -> FlashAttentionPlan | None:
    """Each request's slots are sorted before its new rows are written to them."""
    if plan.append_slots is None:
        return None
    counts = [r.extend_len for r in batch.case.requests]
    slots = torch.cat([part.sort().values for part in torch.split(plan.append_slots, counts)])
    return None if torch.equal(slots, plan.append_slots) else dataclasses.replace(plan, append_slots=slots)


def nothing_appended(plan: FlashAttentionPlan, batch: AttentionBatch) -> FlashAttentionPlan:
    del batch
    return dataclasses.replace(plan, append_slots=None)


def rows_of_step_before(plan: FlashAttentionPlan, batch: AttentionBatch) -> FlashAttentionPlan | None:
    """max_seqlen_q one row short: the last row of the longest request is never written."""
    if batch.case.execution.uses_graph:
        return None
    return dataclasses.replace(plan, max_seqlen_q=plan.max_seqlen_q - 1)


FAULTS: tuple[Fault, ...] = (
    Fault(
        "kv-length-prefix-only",
        FaultClass.EXTENT,
        "the paged pass covers P keys where the pool holds P + E",
        ("sglang PR #26512",),
        on_plan=b.by_plan(paged=with_lengths(lambda batch: [r.prefix_len for r in batch.case.requests])),
        adapters=b.FLASHINFER_PAGED,
        smallest=DRAFT,
    ),
    Fault(
        "kv-length-extend-twice",
        FaultClass.EXTENT,
        "the paged pass covers P + 2E keys: E stale slots are seen",
        ("sglang PR #26628", "sglang PR #26651"),
        on_plan=b.by_plan(
            paged=with_lengths(lambda batch: [r.kv_len + r.extend_len for r in batch.case.requests]),
        ),
        adapters=b.FLASHINFER_PAGED,
        smallest=DRAFT,
    ),
    Fault(
        "extend-keys-counted-twice",
        FaultClass.EXTENT,
        "the new keys reach the kernel twice: in the page list and as k and v",
        ("sglang PR #26651",),
        on_kernel=b.kernel(split=extend_keys_again),
        adapters=b.SINGLE_PASS,
        smallest=DRAFT,
    ),
    Fault(
        "queries-padded-keys-not",
        FaultClass.EXTENT,
        "rows are padded to the longest draft, keys are not: queries stand too early",
        ("sglang PR #12295",),
        on_kernel=b.kernel(query_position=padded_queries),
        blind=b.unless(_rows_need_padding, "not causal, or every extend is a multiple of 4"),
        smallest=DRAFT.replace(requests=((3, 1), (4, 3))),
    ),
    Fault(
        "causal-ignored",
        FaultClass.EXTENT,
        "verify attends to later draft tokens: no causal mask among the new rows",
        ("sglang PR #32269", "sglang #36038"),
        on_plan=_causality(was=True),
        blind=b.several_rows,
        smallest=DRAFT.replace(mode=Mode.TARGET_VERIFY),
    ),
    Fault(
        "bidirectional-run-causal",
        FaultClass.EXTENT,
        "a non-causal request (or a full draft mask) is answered causally",
        ("sglang PR #32149", "sglang PR #32178", "flashinfer PR #4199"),
        on_plan=_causality(was=False),
        blind=b.unless(lambda case: not case.causal and case.max_extend_len > 1, "causal, or one new row at most"),
        smallest=AttentionCase(requests=(Request(0, 2),), causal=False),
    ),
    Fault(
        "rows-at-padded-stride",
        FaultClass.EXTENT,
        "output rows of request i start at i * roundup(rows, 8), not after those before",
        ("flashinfer PR #4382", "flashinfer PR #4059", "flashinfer PR #3929"),
        on_kernel=b.kernel(row_offset=padded_rows),
        blind=b.unless(_rows_move, "one request, or all before are padded to 8 rows already"),
        smallest=DRAFT,
    ),
    Fault(
        "max-seqlen-k-of-step-before",
        FaultClass.EXTENT,
        "the host maximum of kv lengths lags a draft step: the last key of the longest request is lost",
        ("vllm PR #32312",),
        on_plan=b.by_plan(flash=stale_maximum),
        blind=b.unless(_longest_sees_last, "a graph bakes its own maximum, or the longest request has no new row"),
        adapters=b.FLASH_ATTENTION,
        smallest=DRAFT,
    ),
    Fault(
        "max-seqlen-q-of-step-before",
        FaultClass.PLAN_STALENESS,
        "the host maximum of new rows lags: the last row of the longest request is never written",
        ("vllm PR #56922",),
        on_plan=b.by_plan(flash=rows_of_step_before),
        blind=b.unless(lambda case: not case.execution.uses_graph, "a graph bakes its own maximum"),
        adapters=b.FLASH_ATTENTION,
        smallest=DRAFT,
    ),
    Fault(
        "last-partial-page-missing",
        FaultClass.EXTENT,
        "the last, partial page is not in the page list",
        ("sglang PR #15469", "sglang PR #7725", "sglang PR #25077"),
        on_plan=with_lengths(_without_last_partial_page),
        blind=b.unless(
            lambda case: any(r.kv_len > case.page_size and r.kv_len % case.page_size for r in b.active(case)),
            "no request fills a page and then part of another",
        ),
        adapters=b.SINGLE_PASS,
        smallest=DRAFT,
    ),
    Fault(
        "pages-taken-for-contiguous",
        FaultClass.LAYOUT,
        "page ids are the first one and those that follow it",
        ("sglang PR #15469", "flashinfer #3219"),
        on_plan=with_pages(contiguous_pages),
        blind=b.unless(_several_pages_out_of_order, "pages in order, or one page per request"),
        adapters=b.SINGLE_PASS,
        smallest=DRAFT.replace(requests=((7, 2),), page_order="reversed"),
    ),
    Fault(
        "page-list-sorted",
        FaultClass.EXTENT,
        "metadata assume that pages come in rising order",
        ("sglang KNOWN_FAILURES C.1",),
        on_plan=with_pages(sorted_pages),
        blind=b.unless(
            lambda case: (
                case.page_order in (PageOrder.REVERSED, PageOrder.SHUFFLED)
                and any(r.kv_len > case.page_size for r in b.active(case))
            ),
            "pages rise, or one page per request",
        ),
        adapters=b.SINGLE_PASS,
        smallest=DRAFT.replace(requests=((7, 2),), page_order="reversed"),
    ),
    Fault(
        "append-in-slot-order",
        FaultClass.EXTENT,
        "the slots of the new rows are sorted before the rows are written",
        ("sglang KNOWN_FAILURES C.1",),
        on_plan=b.by_plan(flash=append_in_slot_order),
        blind=b.unless(
            lambda case: (
                case.page_order in (PageOrder.REVERSED, PageOrder.SHUFFLED)
                and any(r.extend_len > 1 and r.kv_len > case.page_size for r in case.requests)
            ),
            "slots rise within every request",
        ),
        adapters=b.FLASH_ATTENTION,
        smallest=DRAFT.replace(requests=((3, 2),), page_order="reversed"),
    ),
    Fault(
        "append-missing",
        FaultClass.EXTENT,
        "the new rows are not written before the kernel reads them",
        ("sglang PR #26513",),
        on_plan=b.by_plan(flash=nothing_appended),
        adapters=b.FLASH_ATTENTION,
        smallest=DRAFT,
    ),
    Fault(
        "page-table-rows-shifted",
        FaultClass.PLAN_STALENESS,
        "each request reads the pages of the one before it in the batch",
        ("vllm PR #5412",),
        on_plan=with_pages(swapped_rows),
        blind=b.unless(lambda case: case.num_requests > 1, "one request"),
        adapters=b.SINGLE_PASS,
        smallest=DRAFT,
    ),
    Fault(
        "page-indptr-not-advanced",
        FaultClass.EXTENT,
        "a request that begins a new page keeps its old page count; those after it start one page early",
        ("vllm PR #5412",),
        on_plan=b.by_plan(paged=page_not_advanced),
        blind=b.unless(_begins_a_page, "no request has just begun a page"),
        adapters=b.FLASHINFER_PAGED,
        smallest=DRAFT.replace(requests=((3, 2), (4, 2))),
    ),
    Fault(
        "length-of-the-longest-request",
        FaultClass.EXTENT,
        "every request reads as many keys as the longest: global lengths used where local ones belong",
        ("vllm PR #48003",),
        on_plan=b.by_plan(flash=with_lengths(_longest)),
        blind=b.unless(_ragged_lengths, "all requests with new rows are equally long"),
        adapters=b.FLASH_ATTENTION,
        smallest=DRAFT,
    ),
    Fault(
        "length-rounded-to-pages",
        FaultClass.EMPTY_ROWS,
        "seqused is ignored: the length is that of the pages held",
        ("flash-attn 10ee063e", "flash-attn PR #2167"),
        on_plan=with_lengths(_whole_pages),
        blind=b.unless(_partial_page, "every request ends on a page edge"),
        adapters=b.SINGLE_PASS,
        smallest=DRAFT,
    ),
    Fault(
        "surplus-page-on-page-edge",
        FaultClass.GARBAGE_SLOTS,
        "the page allocated ahead is attended to whenever a request ends on a page edge",
        ("pegainfer PR #350", "pegainfer #291"),
        on_plan=with_lengths(_surplus_page),
        blind=b.unless(
            lambda case: any(r.kv_len % case.page_size == 0 for r in b.active(case)), "no request ends on a page edge"
        ),
        adapters=b.SINGLE_PASS,
        smallest=DRAFT.replace(requests=((2, 2),)),
    ),
)
