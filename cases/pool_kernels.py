"""Filling the pools of one case or several by one Triton kernel for K and one for V; cases/pools.py is the definition.

A pool is a few megabytes: filling it by index arithmetic, gathers and scatters takes a GPU forty kernels, whose
launching costs more than the attention kernel under test.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from cases import counter_hash, hash_kernels
from cases.paging import Paging, host_pagings, pages_of
from cases.ragged import Ints, Packed, before, lengths_of, uploaded
from cases.schema import AttentionCase, KvLayout, Poison

STALE = "stale"  # the stream of hashes that stale rows come from
BLOCK = 2048  # numbers that a program fills
ALIGNED = 512  # bytes: the pool of each case begins as torch's allocator would let it
INT32_ELEMENTS = 1 << 31
LEVELS = {Poison.ZERO: 0, Poison.FINITE: 1, Poison.NAN: 2}  # as the kernel has them


def fused_pools(
    cases: tuple[AttentionCase, ...], rows: Sequence[Tensor], levels: Sequence[Poison], poison_v: float
) -> list[tuple[Tensor, Tensor]] | None:
    """k_pool and v_pool of each case; None if they are not made here.

    rows: k and v of the cases one after another, [sum of total_kv, num_kv_heads, dim]; the pools of all cases are
    slices of one tensor each.
    """
    device, first = rows[0].device, cases[0]
    kernels = hash_kernels.kernels("pool_triton") if hash_kernels.on_gpu(device) else None
    if kernels is None or rows[0].element_size() == 1:
        return None
    shapes = [_shape(*each) for each in zip(cases, host_pagings(cases), strict=True)]
    heads, widest = first.num_kv_heads, max(first.head_dim_qk, first.head_dim_vo)
    if max(map(math.prod, shapes)) * widest > INT32_ELEMENTS:
        return None
    tables = _tables(cases, device.type == "cuda").on(device)
    of_cases, begins = _of_cases(cases, levels)
    (on_device,) = uploaded(device, torch.from_numpy(of_cases.ravel()))
    most_rows = int(of_cases[:, 0].max()) * heads
    pools = []
    for values, signs in zip(rows, (False, True), strict=True):
        dim = values.shape[-1]
        pool = torch.empty(int(begins[-1]) * dim, dtype=values.dtype, device=device)
        columns = 1 << (dim - 1).bit_length()
        at_once = max(1, BLOCK // columns)
        grid = (-(-most_rows // at_once), len(cases))
        kernels.fill_pools[grid](
            values.contiguous(), *tables, on_device, pool, poison_v, signs, heads, dim, at_once, columns
        )
        pools.append(
            [
                pool[begin * dim : begin * dim + math.prod(shape) * dim].view(*shape, dim)
                for begin, shape in zip(begins.tolist(), shapes, strict=False)
            ]
        )
    return list(zip(*pools, strict=True))


def _shape(case: AttentionCase, paging: Paging) -> tuple[int, int, int]:
    """Of a pool without its last dimension."""
    inner = (paging.page_size, case.num_kv_heads)
    return (paging.num_pages, *(inner if case.kv_layout is KvLayout.NHD else inner[::-1]))


def _of_cases(cases: tuple[AttentionCase, ...], levels: Sequence[Poison]) -> tuple[Ints, Ints]:
    """int64 [cases, FIELDS of the kernel], and [cases + 1]: the row at which the pool of each begins, and the end."""
    fields, begins, page = [], [0], 0
    for case, paging, level in zip(cases, host_pagings(cases), levels, strict=True):
        heads = case.num_kv_heads
        slots = paging.num_pages * paging.page_size
        steps = (heads, 1) if case.kv_layout is KvLayout.NHD else (1, paging.page_size)
        stream = counter_hash.stream_key(case.seed, STALE)
        fields.append((slots, paging.page_size, begins[-1], *steps, page, stream, LEVELS[level]))
        page += paging.num_pages
        begins.append(begins[-1] + -(-slots * heads // ALIGNED) * ALIGNED)  # a row has a byte at least
    return np.array(fields, dtype=np.int64), np.array(begins, dtype=np.int64)


@functools.lru_cache(maxsize=2)
def _tables(cases: tuple[AttentionCase, ...], pinned: bool) -> Packed:
    """int32 on the host, of the pages of all pools one after another: owner (a request of all cases, -1: none) and
    turn; of the requests of all cases: prefix length, first packed key, and number in the request's own case."""
    lengths, pages = lengths_of(cases), pages_of(cases)
    pool = lengths.of_requests(before(pages.num_pages))
    page = np.repeat(pool, pages.owned) + pages.page
    owner = np.full(int(pages.num_pages.sum()), -1, dtype=np.int32)
    turn = np.zeros_like(owner)
    owner[page], turn[page] = pages.request.astype(np.int32), pages.turn.astype(np.int32)
    of_requests = (lengths.prefix, before(lengths.kv), lengths.numbers())
    return Packed.of([owner, turn, *(each.astype(np.int32) for each in of_requests)], pinned)
