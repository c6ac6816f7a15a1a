"""Plans of the FlashInfer paths: which rows and keys each pass sees. Pure torch, no kernels.

P, E, S = P + E are a request's prefix, extend and whole length, L the case's window_left.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor

from cases.batch import AttentionBatch
from cases.ragged import indptr, packed_rows, query_rows
from cases.schema import AttentionCase


@dataclass(frozen=True, slots=True)
class RaggedPass:
    """Arguments of one ragged call: the new rows over the new rows.

    qo_indptr, kv_indptr: int32 [num_requests+1], on the CPU (the library copies them)
    window_left: -1 is off
    run_window_left: None: run(); else the deprecated forward call with this window at run time,
                 which the compiled module ignores unless `window_left` was planned too
    """

    qo_indptr: Tensor
    kv_indptr: Tensor
    causal: bool
    window_left: int
    logits_soft_cap: float
    sm_scale: float
    disable_split_kv: bool = False
    run_window_left: int | None = None


@dataclass(frozen=True, slots=True)
class PagedPass:
    """Arguments of one paged call.

    rows:        int64 [n] query rows that take part, in order; None: all of them
    qo_indptr:   int32 [requests+1] over those rows, CPU
    kv_indptr:   int32 [requests+1] in pages, CPU
    kv_indices:  int32 [kv_indptr[-1]] page of each entry (with page_size 1: the token's pool slot)
    kv_last_page_len: int32 [requests], CPU; 0 where a request has no keys
    page_size:   of the view that the call gets; the pool is viewed as [slots, 1, heads, dim] where it is
                 1 and the case's page size is not
    custom_mask: bool [sum of qo_len * kv_len] row-major per request, or None: every key is open
    """

    rows: Tensor | None
    qo_indptr: Tensor
    kv_indptr: Tensor
    kv_indices: Tensor
    kv_last_page_len: Tensor
    page_size: int
    causal: bool
    window_left: int
    custom_mask: Tensor | None
    logits_soft_cap: float
    sm_scale: float
    disable_split_kv: bool = False


@dataclass(frozen=True, slots=True)
class SwaMergePlan:
    """ragged + paged + merge_state. The new rows are written to the pool after the paged call."""

    ragged: RaggedPass
    paged: PagedPass | None  # None: no request has both a visible prefix and new rows
    dirty_workspace: bool = False


@dataclass(frozen=True, slots=True)
class AppendRows:
    """Arguments of append_paged_kv_cache for the new rows, on the batch's device.

    batch_indices, positions: int32 [total_q]
    kv_indptr, kv_indices, kv_last_page_len: int32, the page lists with the new rows included
    """

    batch_indices: Tensor
    positions: Tensor
    kv_indptr: Tensor
    kv_indices: Tensor
    kv_last_page_len: Tensor


@dataclass(frozen=True, slots=True)
class SinglePagedPlan:
    """Append the new rows, then one paged call over all keys."""

    append: AppendRows
    paged: PagedPass
    dirty_workspace: bool = False


# -- swa merge -----------------------------------------------------------------------------------
def plan_swa_merge(batch: AttentionBatch) -> SwaMergePlan:
    """The recipe of SGLang's sliding-window EXTEND with prefix, with both legs windowed.

    Ragged leg: E new rows over E new rows, causal, window_left = L. Both counts agree, so the library's
    "queries end where the keys end" is the true alignment.

    Paged leg: keys [max(P-L, 0), P). window_left cannot express the window here, because the library
    would align the queries to the end of the *prefix*; a mask k >= q - L does, and none is needed when
    the first key is open to the last row. Requests without a prefix in reach, or without new rows, do
    not take part: up to FlashInfer 0.6.18 a row with no key gives a finite LSE (about -5e4) and later
    releases -inf, and a recipe that routes only rows with keys need not care which.
    """
    case = batch.case
    new = indptr([r.extend_len for r in case.requests])
    window = -1 if case.window_left is None else case.window_left
    ragged = RaggedPass(
        qo_indptr=new,
        kv_indptr=new,
        causal=case.causal,
        window_left=window,
        logits_soft_cap=case.logits_soft_cap or 0.0,
        sm_scale=case.scale,
        disable_split_kv=case.execution.num_splits == 1,
    )
    return SwaMergePlan(ragged, plan_prefix_leg(batch), case.execution.workspace == "dirty")


def plan_prefix_leg(batch: AttentionBatch) -> PagedPass | None:
    """The paged leg of `plan_swa_merge`, or None where no row sees a cached key."""
    case = batch.case
    reach = case.window_left
    firsts = [0 if reach is None else max(r.prefix_len - reach, 0) for r in case.requests]
    takes_part = [i for i, r in enumerate(case.requests) if r.extend_len and r.prefix_len > firsts[i]]
    if not takes_part:
        return None
    lows = [firsts[i] for i in takes_part]
    highs = [case.requests[i].prefix_len for i in takes_part]
    leg = token_pass(batch, takes_part, lows, highs)
    return dataclasses.replace(leg, custom_mask=prefix_mask(case, takes_part, lows, highs, batch.device))


def token_pass(batch: AttentionBatch, requests: list[int], lows: list[int], highs: list[int]) -> PagedPass:
    """A non-causal, unmasked paged call with page size 1: rows of `requests` over positions
    [lows[i], highs[i]) of each, named by token slot."""
    case = batch.case
    extends = [case.requests[i].extend_len for i in requests]
    counts = [high - low for low, high in zip(lows, highs, strict=True)]
    keys = packed_rows(counts, lows, batch.device)
    of_request = torch.tensor(requests, dtype=torch.int64, device=batch.device)
    slots = batch.paging.slots(keys._replace(request=of_request[keys.request]))
    everyone = requests == list(range(case.num_requests))
    starts = indptr([r.extend_len for r in case.requests]).tolist()
    rows = packed_rows(extends, [starts[i] for i in requests], batch.device).position
    return PagedPass(
        rows=None if everyone else rows,
        qo_indptr=indptr(extends),
        kv_indptr=indptr(counts),
        kv_indices=slots.to(torch.int32),
        kv_last_page_len=torch.tensor([min(count, 1) for count in counts], dtype=torch.int32),
        page_size=1,
        causal=False,
        window_left=-1,
        custom_mask=None,
        logits_soft_cap=case.logits_soft_cap or 0.0,
        sm_scale=case.scale,
        disable_split_kv=case.execution.num_splits == 1,
    )


def prefix_mask(
    case: AttentionCase, requests: list[int], lows: list[int], highs: list[int], device: torch.device
) -> Tensor | None:
    """Flattened bool mask k >= q - L over keys [low, high) of each request, or None if all is open."""
    reach = case.window_left
    if reach is None:
        return None
    blocks, restricts = [], False
    for i, low, high in zip(requests, lows, highs, strict=True):
        request = case.requests[i]
        restricts |= low < request.kv_len - 1 - reach
        q = torch.arange(request.prefix_len, request.kv_len, device=device)
        k = torch.arange(low, high, device=device)
        blocks.append((k[None, :] >= q[:, None] - reach).reshape(-1))
    return torch.cat(blocks) if restricts else None


# -- one paged pass ------------------------------------------------------------------------------
def plan_single_paged(batch: AttentionBatch) -> SinglePagedPlan:
    """Append first; then every row over [0, S), where "queries end where the keys end" is the truth."""
    case = batch.case
    lens = [r.kv_len for r in case.requests]
    counts = [-(-length // case.page_size) for length in lens]
    kv_indptr = indptr(counts)
    entries = packed_rows(counts, [0] * len(counts), batch.device)
    kv_indices = batch.page_table[entries.request, entries.position]
    last = torch.tensor([(n - 1) % case.page_size + 1 if n else 0 for n in lens], dtype=torch.int32)
    rows = query_rows(case, batch.device)
    append = AppendRows(
        batch_indices=rows.request.to(torch.int32),
        positions=rows.position.to(torch.int32),
        kv_indptr=kv_indptr.to(batch.device),
        kv_indices=kv_indices,
        kv_last_page_len=last.to(batch.device),
    )
    paged = PagedPass(
        rows=None,
        qo_indptr=indptr([r.extend_len for r in case.requests]),
        kv_indptr=kv_indptr,
        kv_indices=kv_indices,
        kv_last_page_len=last,
        page_size=case.page_size,
        causal=case.causal,
        window_left=-1 if case.window_left is None else case.window_left,
        custom_mask=None,
        logits_soft_cap=case.logits_soft_cap or 0.0,
        sm_scale=case.scale,
        disable_split_kv=case.execution.num_splits == 1,
    )
    return SinglePagedPlan(append, paged, case.execution.workspace == "dirty")
