"""The batch: a case made real on a device."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from cases.paging import Paging, host_paging
from cases.pools import filled_pools, scatter, stale_rows
from cases.ragged import indptr, query_rows, uploaded
from cases.recipes import LogicalData, make_data
from cases.schema import AttentionCase, Poison


@dataclass(slots=True)
class AttentionBatch:
    """Tensors of one case on one device.

    data:       inputs in logical order (see LogicalData); data.k and data.v hold every key
    k_pool:     [num_pages, page_size, num_kv_heads, head_dim_qk], or with kv_layout HND
                [num_pages, num_kv_heads, page_size, head_dim_qk]; prefix rows are written, the new
                rows are NOT: an adapter writes them (`write_new_rows`) when its path does
    v_pool:     the same with head_dim_vo
    paging:     the page table
    qo_indptr:  int32 [num_requests+1]
    prefix_lens, extend_lens: int32 [num_requests]
    new_slots:  int64 [total_q], the pool slots of the new rows
    poison:     the level that the unused slots really hold
    new_keys:   int64 [total_q], the rows of data.k and data.v that are new
    unwritten:  what an output buffer holds before a kernel writes it
    """

    case: AttentionCase
    device: torch.device
    data: LogicalData
    k_pool: Tensor
    v_pool: Tensor
    paging: Paging
    qo_indptr: Tensor
    prefix_lens: Tensor
    extend_lens: Tensor
    new_slots: Tensor
    poison: Poison
    new_keys: Tensor
    unwritten: float = float("nan")

    @property
    def q(self) -> Tensor:
        """[total_q, num_qo_heads, head_dim_qk]"""
        return self.data.q

    @property
    def k_new(self) -> Tensor:
        """[total_q, num_kv_heads, head_dim_qk]: the keys of the new rows, in the order of q."""
        return self.data.k[self.new_keys]

    @property
    def v_new(self) -> Tensor:
        """[total_q, num_kv_heads, head_dim_vo]"""
        return self.data.v[self.new_keys]

    @property
    def page_table(self) -> Tensor:
        """int32 [num_requests, columns]"""
        return self.paging.page_table

    @property
    def kv_lens(self) -> Tensor:
        """int32 [num_requests]: prefix + extend"""
        return self.prefix_lens + self.extend_lens

    def write_new_rows(self) -> None:
        """Write the new rows into the pool, as a serving engine's cache write does."""
        scatter(self.k_pool, self.new_slots, self.k_new, self.case.kv_layout)
        scatter(self.v_pool, self.new_slots, self.v_new, self.case.kv_layout)

    def reset(self) -> None:
        """Undo `write_new_rows`: the slots of the new rows hold stale data again."""
        rows = query_rows(self.case, self.device)
        stale_k, stale_v = stale_rows(self.case, rows, self.poison)
        scatter(self.k_pool, self.new_slots, stale_k, self.case.kv_layout)
        scatter(self.v_pool, self.new_slots, stale_v, self.case.kv_layout)

    def empty_output(self) -> Tensor:
        """[total_q, num_qo_heads, head_dim_vo] of NaN (see `unwritten`), so that an unwritten row cannot pass."""
        shape = (self.case.total_q, self.case.num_qo_heads, self.case.head_dim_vo)
        return torch.full(shape, self.unwritten, dtype=self.q.dtype, device=self.device)


def build_batch(
    case: AttentionCase,
    device: torch.device | str = "cpu",
    *,
    data: LogicalData | None = None,
    poison: Poison | None = None,
) -> AttentionBatch:
    """Make `case` real. `data` replaces its recipe (certificates do); `poison` its poison level."""
    device = torch.device(device)
    data = make_data(case, device) if data is None else data
    level = case.poison if poison is None else poison
    paging = host_paging(case)
    k_pool, v_pool = filled_pools(case, paging, data, level)
    new_slots, new_keys, table, *lengths = _handed_out(case, device)
    return AttentionBatch(
        case=case,
        device=device,
        data=data,
        k_pool=k_pool,
        v_pool=v_pool,
        paging=replace(paging, page_table=table.view_as(paging.page_table)),
        qo_indptr=lengths[0],
        prefix_lens=lengths[1],
        extend_lens=lengths[2],
        new_slots=new_slots,
        poison=level,
        new_keys=new_keys,
    )


def _handed_out(case: AttentionCase, device: torch.device) -> list[Tensor]:
    """new_slots and new_keys int64 [total_q], and int32 the page table, qo_indptr, prefix_lens and extend_lens, by
    two copies to the device. A batch is its adapter's to write to; what is kept is not."""
    wide, small = _places(case)
    given = [*uploaded(device, *wide), *uploaded(device, *small)]
    return [there.clone() if there is here else there for there, here in zip(given, (*wide, *small), strict=True)]


@functools.lru_cache(maxsize=2)
def _places(case: AttentionCase) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """What `_handed_out` copies, on the host. Kept: a case is built once per certificate."""
    paging, new = host_paging(case), query_rows(case, "cpu")
    start = indptr([r.kv_len for r in case.requests], "cpu", torch.int64)
    prefix_lens, extend_lens = ([getattr(r, name) for r in case.requests] for name in ("prefix_len", "extend_len"))
    lengths = (torch.tensor(lens, dtype=torch.int32) for lens in (prefix_lens, extend_lens))
    wide = (paging.slots(new), start[new.request] + new.position)
    return wide, (paging.page_table.flatten(), indptr(extend_lens), *lengths)
