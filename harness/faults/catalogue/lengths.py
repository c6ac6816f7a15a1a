"""Plans whose kv lengths or pages are not the true ones, for each kind of plan."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from cases.batch import AttentionBatch
from cases.ragged import indptr, packed_rows
from harness.adapters.flash_attention_plans import FlashAttentionPlan, trimmed
from harness.adapters.flashinfer_plans import PagedPass, SinglePagedPlan
from harness.faults.catalogue.building import by_plan
from harness.faults.protocol import PlanFault

Lengths = Callable[[AttentionBatch], list[int]]


def true_lengths(batch: AttentionBatch) -> list[int]:
    return [r.kv_len for r in batch.case.requests]


def flash_with_lengths(plan: FlashAttentionPlan, batch: AttentionBatch, lens: list[int]) -> FlashAttentionPlan:
    """`lens` keys per request, host maximum and page table to match."""
    longest = max(*lens, 1)
    table = trimmed(batch.paging, longest)
    return dataclasses.replace(plan, seqused_k=plan.seqused_k.new_tensor(lens), max_seqlen_k=longest, page_table=table)


def paged_with_lengths(leg: PagedPass, batch: AttentionBatch, lens: list[int]) -> PagedPass:
    """The single pass over `lens` keys per request, pages from the table's columns."""
    size = batch.case.page_size
    counts = [-(-length // size) for length in lens]
    entries = packed_rows(counts, [0] * len(counts), batch.device)
    columns = entries.position.clamp(max=batch.page_table.shape[1] - 1)
    return dataclasses.replace(
        leg,
        kv_indptr=indptr(counts),
        kv_indices=batch.page_table[entries.request, columns],
        kv_last_page_len=torch.tensor([(n - 1) % size + 1 if n else 0 for n in lens], dtype=torch.int32),
    )


def with_lengths(lengths: Lengths) -> PlanFault:
    """A single pass that reads `lengths` keys of each request; None where they are the true ones."""

    def flash(plan: FlashAttentionPlan, batch: AttentionBatch) -> FlashAttentionPlan | None:
        lens = lengths(batch)
        return None if lens == true_lengths(batch) else flash_with_lengths(plan, batch, lens)

    def paged(plan: SinglePagedPlan, batch: AttentionBatch) -> SinglePagedPlan | None:
        lens = lengths(batch)
        if lens == true_lengths(batch):
            return None
        return dataclasses.replace(plan, paged=paged_with_lengths(plan.paged, batch, lens))

    return by_plan(flash=flash, paged=paged)


def with_pages(change: Callable[[Tensor, list[int]], Tensor]) -> PlanFault:
    """A single pass through another page table.

    `change(table, used)` gets the plan's int32 [requests, columns] table and how many columns each request
    uses, and returns one of the same shape.
    """

    def used(batch: AttentionBatch) -> list[int]:
        return [-(-r.kv_len // batch.case.page_size) for r in batch.case.requests]

    def flash(plan: FlashAttentionPlan, batch: AttentionBatch) -> FlashAttentionPlan:
        return dataclasses.replace(plan, page_table=change(plan.page_table.clone(), used(batch)))

    def paged(plan: SinglePagedPlan, batch: AttentionBatch) -> Any:
        counts = used(batch)
        changed = change(trimmed(batch.paging, batch.case.max_kv_len).clone(), counts)
        entries = packed_rows(counts, [0] * len(counts), batch.device)
        leg = dataclasses.replace(plan.paged, kv_indices=changed[entries.request, entries.position])
        return dataclasses.replace(plan, paged=leg)

    return by_plan(flash=flash, paged=paged)
