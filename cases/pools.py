"""The pools of a case: cached keys and values in their slots, stale rows in owned slots without a key, and NaN
in pages that no request owns.

On a GPU two kernels do it for all cases of a group; elsewhere, and for what the kernel does not do, rows are scattered.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from cases import counter_hash, hash_kernels
from cases.paging import Paging, host_pagings
from cases.pool_kernels import INT32_ELEMENTS, STALE, fused_pools
from cases.ragged import ON_HOST, Rows, indptr, packed_rows, uploaded
from cases.recipes import LogicalData, make_data, torch_dtype
from cases.schema import AttentionCase, KvLayout, Poison, Request

POISON_V = 64.0  # exact in every dtype down to fp8, far outside unit-normal data, no overflow


def filled_pools(
    cases: Sequence[AttentionCase], data: LogicalData, levels: Sequence[Poison]
) -> list[tuple[Tensor, Tensor]]:
    """k_pool and v_pool of each case, on the device of `data`: k and v of the cases one after another. The slots of
    new rows are stale.

    NaN is fair outside owned pages whatever the level: no contract lets a kernel load them.
    """
    if hash_kernels.on_gpu(data.k.device) and _kernel_agrees(str(data.k.device)):
        fused = fused_pools(tuple(cases), (data.k, data.v), levels, POISON_V)
        if fused is not None:
            return fused
    return scattered_pools(cases, data, levels)


@functools.cache
def _kernel_agrees(device: str) -> bool:
    """Whether the fused kernel fills as is defined here; False where it cannot be compiled."""
    case = AttentionCase(
        requests=(Request(20, 3), Request(0, 2)), num_kv_heads=2, page_size=8, dtype="float16", kv_dtype="float16"
    )
    cases, levels = (case, case.replace(seed=1, page_size=4)), (Poison.FINITE, Poison.NAN)
    each = [make_data(one, device) for one in cases]
    q, k, v = (torch.cat([getattr(one, name) for one in each]) for name in "qkv")
    data = LogicalData(q, k, v, None)
    try:
        fused = fused_pools(cases, (data.k, data.v), levels, POISON_V)
    except Exception as problem:  # whatever Triton's toolchain raises; scattering gives the same bits
        warnings.warn(f"filling pools without a fused kernel: {type(problem).__name__}: {problem}", stacklevel=2)
        return False
    for got, expected in zip(fused or [], scattered_pools(cases, data, levels), strict=False):
        for a, b in zip(got, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
    return fused is not None


def scattered_pools(
    cases: Sequence[AttentionCase], data: LogicalData, levels: Sequence[Poison]
) -> list[tuple[Tensor, Tensor]]:
    """The definition of `filled_pools`."""
    tokens = [case.total_kv for case in cases]
    rows = zip(torch.split(data.k, tokens), torch.split(data.v, tokens), strict=True)
    return [_scattered(*each) for each in zip(cases, host_pagings(tuple(cases)), rows, levels, strict=True)]


def _scattered(
    case: AttentionCase, paging: Paging, rows: tuple[Tensor, Tensor], level: Poison
) -> tuple[Tensor, Tensor]:
    """The pools of one case, by index arithmetic; rows: its k and v."""
    device = rows[0].device
    k_pool, v_pool = (_empty(case, paging, head_dim, device) for head_dim in (case.head_dim_qk, case.head_dim_vo))
    _fill_unowned(paging, (k_pool, v_pool), level)
    slots = _slots(case, paging, str(device))
    stale = stale_rows(case, slots.stale, level)
    for pool, values, unused in zip((k_pool, v_pool), rows, stale, strict=True):
        scatter(pool, slots.stale_slots, unused, case.kv_layout)
        scatter(pool, slots.prefix_slots, values[slots.prefix_keys], case.kv_layout)
    return k_pool, v_pool


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


def stale_rows(case: AttentionCase, rows: Rows, level: Poison) -> tuple[Tensor, Tensor]:
    """Stale k and v rows [n, num_kv_heads, dim] for slots that stand where `rows` would."""
    dtype = torch_dtype(case.kv_dtype)
    n, heads, dim_k, dim_v = rows.request.numel(), case.num_kv_heads, case.head_dim_qk, case.head_dim_vo
    if level is not Poison.FINITE:
        value = 0.0 if level is Poison.ZERO else float("nan")
        shape_k, shape_v = (n, heads, dim_k), (n, heads, dim_v)
        return (
            torch.full(shape_k, value, device=rows.request.device).to(dtype),
            torch.full(shape_v, value, device=rows.request.device).to(dtype),
        )
    # K of normal size and V of +-64: a leak is then a wrong answer, not an overflow.
    keys = counter_hash.row_keys(counter_hash.stream_key(case.seed, STALE), rows.request, rows.position)
    stale_k = counter_hash.normal(keys, heads * dim_k, dtype)
    stale_v = (counter_hash.signs(keys, heads * dim_v) * POISON_V).to(dtype)
    return stale_k.view(n, heads, dim_k), stale_v.view(n, heads, dim_v)


def _empty(case: AttentionCase, paging: Paging, head_dim: int, device: torch.device) -> Tensor:
    inner = (
        (case.page_size, case.num_kv_heads) if case.kv_layout is KvLayout.NHD else (case.num_kv_heads, case.page_size)
    )
    return torch.empty((paging.num_pages, *inner, head_dim), dtype=torch_dtype(case.kv_dtype), device=device)


@dataclass(frozen=True, slots=True)
class _Slots:
    """prefix_slots, prefix_keys: slot and packed key of every cached key; stale_slots and stale: slot and place of
    every owned slot that holds none."""

    prefix_slots: Tensor
    prefix_keys: Tensor
    stale_slots: Tensor
    stale: Rows


@functools.lru_cache(maxsize=2)
def _slots(case: AttentionCase, paging: Paging, device: str) -> _Slots:
    """On `device`, by the host where there are few. Kept: a case is built once per certificate."""
    prefix_lens = [r.prefix_len for r in case.requests]
    unused = [count * case.page_size - start for count, start in zip(paging.owned, prefix_lens, strict=True)]
    at = "cpu" if case.total_kv + sum(unused) <= ON_HOST else device
    here = replace(paging, page_table=paging.page_table.to(at))
    start = indptr([r.kv_len for r in case.requests], at, torch.int64)
    prefix = packed_rows(prefix_lens, [0] * case.num_requests, at)
    stale = packed_rows(unused, prefix_lens, at)
    keys = start[prefix.request] + prefix.position
    flat = uploaded(device, here.slots(prefix), keys, here.slots(stale), *stale)
    return _Slots(flat[0], flat[1], flat[2], Rows(flat[3], flat[4]))


def _fill_unowned(paging: Paging, pools: tuple[Tensor, ...], level: Poison) -> None:
    """Pages that no request owns; owned ones are written over.

    A pool past 2^31 elements is poisoned only where an index that wraps at 32 bits would land or
    near the owned pages; filling all of it would cost more than the case.
    """
    value = 0.0 if level is Poison.ZERO else float("nan")
    for pool in pools:
        if pool.numel() <= INT32_ELEMENTS:
            _fill(pool, value)
        else:
            for page in _neighbourhood(paging, pool):
                _fill(pool[page : page + 1], value)


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
