"""The kv cache after a run: nothing in it may be other than before, but the slots of the new rows.

A kernel that overwrites a key once it has read it gives the right answer, and spoils the next step of that request, or
of another that shares the page. No output shows it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cases.batch import AttentionBatch
from cases.pool_kernels import INT32_ELEMENTS
from cases.pools import filled_pools
from cases.recipes import LogicalData
from cases.schema import KvLayout
from harness.verdict import Evidence

KIND = "cache"
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}


def compare_cache(batch: AttentionBatch, data: LogicalData, pads_page_0: bool = False) -> Evidence:
    """The pools of `batch` after a run, bit by bit, against those that its case and `data` make: a slot of a new row
    may hold what it held or the new row, every other slot what it held.

    pads_page_0: a graph's padding rows are written to page 0, which belongs to no request: it is not looked at there
    """
    pools = (batch.k_pool, batch.v_pool)
    if all(isinstance(pool, Tensor) for pool in pools) and max(pool.numel() for pool in pools) > INT32_ELEMENTS:
        return Evidence(KIND, None, message="pools past 2^31 elements are not filled, so not compared")
    before = filled_pools([batch.case], data, [batch.poison])[0]
    if not all(map(_alike, pools, before)):
        return Evidence(KIND, None, message="the adapter put other pools in the place of the batch's")
    changed = torch.zeros(before[0].shape[0], batch.case.page_size, dtype=torch.bool, device=batch.device)
    for pool, was, new in zip(pools, before, (batch.k_new, batch.v_new), strict=True):
        changed |= _changed(batch, pool, was, new)
    if pads_page_0 and batch.case.execution.uses_graph:
        changed[0] = False
    count = int(changed.sum())
    if not count:
        return Evidence(KIND, True)
    slot = int(changed.flatten().to(torch.uint8).argmax())
    slots = f"{count} slots of the kv cache hold" if count > 1 else "1 slot of the kv cache holds"
    message = f"{slots} neither what was there before nor a new row, first {_place(batch, slot)}"
    return Evidence(KIND, False, {"slots": count, "first": slot}, message)


def only_the_cache(failures: Sequence[Evidence]) -> bool:
    """True if nothing else failed: every output is right."""
    return bool(failures) and all(evidence.kind == KIND for evidence in failures)


def _alike(pool: object, was: Tensor) -> bool:
    return isinstance(pool, Tensor) and (pool.shape, pool.dtype, pool.device) == (was.shape, was.dtype, was.device)


def _changed(batch: AttentionBatch, pool: Tensor, was: Tensor, new: Tensor) -> Tensor:
    """bool [pages, page_size]: slots that hold neither what they held nor their new row."""
    now, then = (_by_token(_bits(each), batch.case.kv_layout) for each in (pool, was))
    changed = (now != then).any(3).any(2)
    page, offset = batch.new_slots // batch.case.page_size, batch.new_slots % batch.case.page_size
    changed[page, offset] &= (now[page, offset] != _bits(new)).flatten(1).any(1)
    return changed


def _bits(values: Tensor) -> Tensor:
    """The bits of each number: NaN is equal to itself, and -0 is not 0."""
    return values.view(_INTEGERS[values.element_size()])


def _by_token(pool: Tensor, layout: KvLayout) -> Tensor:
    """[pages, page_size, heads, dim]"""
    return pool if layout is KvLayout.NHD else pool.transpose(1, 2)


def _place(batch: AttentionBatch, slot: int) -> str:
    """A slot in attention terms."""
    page, offset = divmod(slot, batch.case.page_size)
    owners = (batch.paging.page_table.cpu() == page).nonzero().tolist()
    for request, turn in owners:
        if turn < batch.paging.owned[request]:
            position = turn * batch.case.page_size + offset
            length = batch.case.requests[request].kv_len
            what = "position" if position < length else "unused position"
            return f"request {request}, {what} {position} (page {page}, offset {offset})"
    return f"page {page}, offset {offset}, which no request owns"
