"""Filling pools by one Triton kernel each, where there is Triton; cases/pools.py is the definition.

A pool is a few megabytes: filling it by index arithmetic, gathers and scatters takes a GPU forty kernels, whose
launching costs more than the attention kernel under test.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from cases import counter_hash, hash_kernels
from cases.paging import Paging, host_paging, owners_of
from cases.ragged import uploaded
from cases.schema import AttentionCase, KvLayout, Poison

STALE = "stale"  # the stream of hashes that stale rows come from
BLOCK = 2048  # elements that a program fills
FILLED, NORMAL, SIGNS = range(3)  # what stale rows hold


def fill_pools(
    case: AttentionCase,
    paging: Paging,
    rows: Sequence[Tensor],
    pools: Sequence[Tensor],
    level: Poison,
    poison_v: float,
) -> bool:
    """Fill the k and v pool from the k and v rows [total_kv, num_kv_heads, dim]; False if it is not done here."""
    kernels = hash_kernels.kernels("pool_triton") if hash_kernels.on_gpu(pools[0].device) else None
    if kernels is None or pools[0].element_size() == 1:
        return False
    outside = 0.0 if level is Poison.ZERO else float("nan")
    kinds = (NORMAL, SIGNS) if level is Poison.FINITE else (FILLED, FILLED)
    of_pages = _of_pages(case, str(pools[0].device))
    stream = counter_hash.stream_key(case.seed, STALE)
    for values, pool, kind in zip(rows, pools, kinds, strict=True):
        heads, dim = values.shape[1:]
        strides = (dim, heads * dim) if case.kv_layout is KvLayout.NHD else (paging.page_size * dim, dim)
        slots, columns = paging.num_pages * paging.page_size, min(BLOCK, 1 << (heads * dim - 1).bit_length())
        at_once = BLOCK // columns
        kernels.fill_pool[(-(-slots // at_once), -(-heads * dim // columns))](
            values.contiguous(), *of_pages, pool, stream, slots, paging.page_size, heads, dim, *strides,
            outside, poison_v, kind, at_once, columns,
        )  # fmt: skip
    return True


@functools.lru_cache(maxsize=2)
def _of_pages(case: AttentionCase, device: str) -> tuple[Tensor, ...]:
    """int32 on `device`: owner and turn of each page (`Owners`); prefix length and first packed key of each request."""
    owners = owners_of(host_paging(case))
    prefix = np.array([r.prefix_len for r in case.requests], dtype=np.int32)
    kv_lens = np.array([r.kv_len for r in case.requests], dtype=np.int32)
    start = np.cumsum(kv_lens, dtype=np.int32) - kv_lens
    return uploaded(device, *(torch.from_numpy(each) for each in (owners.request, owners.turn, prefix, start)))
