"""The batch: a case made real on a device."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from cases import counter_hash
from cases.paging import Paging, make_paging
from cases.ragged import ON_HOST, Rows, indptr, packed_rows, query_rows, uploaded
from cases.recipes import LogicalData, make_data, torch_dtype
from cases.schema import AttentionCase, KvLayout, Poison

POISON_V = 64.0  # exact in every dtype down to fp8, far outside unit-normal data, no overflow
INT32_ELEMENTS = 1 << 31


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
        stale_k, stale_v = _stale(self.case, rows, self.poison)
        scatter(self.k_pool, self.new_slots, stale_k, self.case.kv_layout)
        scatter(self.v_pool, self.new_slots, stale_v, self.case.kv_layout)

    def empty_output(self) -> Tensor:
        """[total_q, num_qo_heads, head_dim_vo] of NaN (see `unwritten`), so that an unwritten row cannot pass."""
        shape = (self.case.total_q, self.case.num_qo_heads, self.case.head_dim_vo)
        return torch.full(shape, self.unwritten, dtype=self.q.dtype, device=self.device)


def scatter(pool: Tensor, slots: Tensor, rows: Tensor, layout: KvLayout) -> None:
    """pool[slot] = row, for rows [n, heads, dim] and slots int64 [n]."""
    # fp8 has no indexed store on every device; its bytes do.
    if rows.element_size() == 1:
        pool, rows = pool.view(torch.uint8), rows.view(torch.uint8)
    if layout is KvLayout.NHD and pool.is_contiguous():
        pool.view(-1, *pool.shape[2:]).index_copy_(0, slots, rows)
        return
    page_size = pool.shape[1] if layout is KvLayout.NHD else pool.shape[2]
    by_token = pool if layout is KvLayout.NHD else pool.transpose(1, 2)
    by_token[slots // page_size, slots % page_size] = rows


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
    index = _make_index(case, device)
    k_pool = _pool(case, index.paging, case.head_dim_qk, device)
    v_pool = _pool(case, index.paging, case.head_dim_vo, device)
    _poison_unused(case, index, k_pool, v_pool, level)
    scatter(k_pool, index.prefix_slots, data.k[index.prefix_keys], case.kv_layout)
    scatter(v_pool, index.prefix_slots, data.v[index.prefix_keys], case.kv_layout)
    return AttentionBatch(
        case=case,
        device=device,
        data=data,
        k_pool=k_pool,
        v_pool=v_pool,
        paging=index.paging,
        qo_indptr=index.qo_indptr,
        prefix_lens=index.prefix_lens,
        extend_lens=index.extend_lens,
        new_slots=index.new_slots,
        poison=level,
        new_keys=index.new_keys,
    )


@dataclass(frozen=True, slots=True)
class _Index:
    """Where everything goes. prefix_slots, prefix_keys: slot and packed key of every cached key; stale_slots and
    stale: slot and place of every owned slot that holds none; new_slots, new_keys: of the new rows."""

    paging: Paging
    prefix_slots: Tensor
    prefix_keys: Tensor
    stale_slots: Tensor
    stale: Rows
    new_slots: Tensor
    new_keys: Tensor
    qo_indptr: Tensor
    prefix_lens: Tensor
    extend_lens: Tensor


def _make_index(case: AttentionCase, device: torch.device) -> _Index:
    """Computed on the host and uploaded in two copies, or on the device where there is much of it."""
    paging, wide, small = _places(case, str(device))
    rows, (*lengths, table) = uploaded(device, *wide), uploaded(device, *small)
    if rows[0] is wide[0]:  # a batch is its adapter's to write to; what is kept is not
        rows = tuple(row.clone() for row in rows)
    if table is small[-1]:
        *lengths, table = (each.clone() for each in small)
    paging = replace(paging, page_table=table.view_as(paging.page_table))
    return _Index(paging, rows[0], rows[1], rows[2], Rows(rows[3], rows[4]), rows[5], rows[6], *lengths)


@functools.lru_cache(maxsize=2)
def _places(case: AttentionCase, device: str) -> tuple[Paging, tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Paging on the host, and what _Index holds, int64 and int32. Kept: a case is built once per certificate."""
    paging = make_paging(case, "cpu")
    prefix_lens = [r.prefix_len for r in case.requests]
    # Prefix slots are written too: only what stays unused needs stale rows.
    unused = [count * case.page_size - start for count, start in zip(paging.owned, prefix_lens, strict=True)]
    at = "cpu" if case.total_kv + sum(unused) <= ON_HOST else device
    here = replace(paging, page_table=paging.page_table.to(at))
    start = indptr([r.kv_len for r in case.requests], at, torch.int64)
    prefix, new = packed_rows(prefix_lens, [0] * case.num_requests, at), query_rows(case, at)
    stale = packed_rows(unused, prefix_lens, at)
    wide = (
        here.slots(prefix),
        start[prefix.request] + prefix.position,
        here.slots(stale),
        *stale,
        here.slots(new),
        start[new.request] + new.position,
    )
    extend_lens = [r.extend_len for r in case.requests]
    lengths = (indptr(extend_lens), *(torch.tensor(lens, dtype=torch.int32) for lens in (prefix_lens, extend_lens)))
    return paging, wide, (*lengths, paging.page_table.flatten())


def _pool(case: AttentionCase, paging: Paging, head_dim: int, device: torch.device) -> Tensor:
    inner = (
        (case.page_size, case.num_kv_heads) if case.kv_layout is KvLayout.NHD else (case.num_kv_heads, case.page_size)
    )
    return torch.empty((paging.num_pages, *inner, head_dim), dtype=torch_dtype(case.kv_dtype), device=device)


def _stale(case: AttentionCase, rows: Rows, level: Poison) -> tuple[Tensor, Tensor]:
    """Stale k and v rows [n, num_kv_heads, dim] for slots that stand where `rows` would."""
    dtype = torch_dtype(case.kv_dtype)
    keys = counter_hash.row_keys(counter_hash.stream_key(case.seed, "stale"), rows.request, rows.position)
    n, heads, dim_k, dim_v = keys.numel(), case.num_kv_heads, case.head_dim_qk, case.head_dim_vo
    if level is not Poison.FINITE:
        fill = 0.0 if level is Poison.ZERO else float("nan")
        shape_k, shape_v = (n, heads, dim_k), (n, heads, dim_v)
        return (
            torch.full(shape_k, fill, device=keys.device).to(dtype),
            torch.full(shape_v, fill, device=keys.device).to(dtype),
        )
    # K of normal size and V of +-64: a leak is then a wrong answer, not an overflow.
    stale_k = counter_hash.normal(keys, heads * dim_k).to(dtype)
    stale_v = (counter_hash.signs(keys, heads * dim_v) * POISON_V).to(dtype)
    return stale_k.view(n, heads, dim_k), stale_v.view(n, heads, dim_v)


def _poison_unused(case: AttentionCase, index: _Index, k_pool: Tensor, v_pool: Tensor, level: Poison) -> None:
    """Fill owned pages with stale rows and pages nobody owns with NaN (zeros at level zero).

    NaN is fair outside owned pages whatever the level: no contract lets a kernel load them.
    A pool past 2^31 elements is poisoned only where an index that wraps at 32 bits would land or
    near the owned pages; filling all of it would cost more than the case.
    """
    outside = 0.0 if level is Poison.ZERO else float("nan")
    for pool in (k_pool, v_pool):
        if pool.numel() <= INT32_ELEMENTS:
            _fill(pool, outside)
        else:
            for page in _neighbourhood(index.paging, pool):
                _fill(pool[page : page + 1], outside)
    stale_k, stale_v = _stale(case, index.stale, level)
    scatter(k_pool, index.stale_slots, stale_k, case.kv_layout)
    scatter(v_pool, index.stale_slots, stale_v, case.kv_layout)


def _neighbourhood(paging: Paging, pool: Tensor) -> list[int]:
    elements_per_page = pool[0].numel()
    pages = {0}
    for page in {int(p) for row in paging.page_table.tolist() for p in row}:
        wrapped = (page * elements_per_page) % INT32_ELEMENTS // elements_per_page
        pages |= {p for p in (page - 1, page, page + 1, wrapped) if 0 <= p < paging.num_pages}
    return sorted(pages)


def _fill(tensor: Tensor, value: float) -> None:
    if tensor.element_size() == 1:  # fp8: fill_ is not everywhere, its byte pattern is
        byte = torch.tensor(value).to(tensor.dtype).view(torch.uint8)
        tensor.view(torch.uint8).fill_(int(byte))
    else:
        tensor.fill_(value)
