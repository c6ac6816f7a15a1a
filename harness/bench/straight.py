"""What the bench compares with: a loop over cases and requests, written the way test files usually are.

Inputs come from torch's generator and are laid into the pages request by request; the adapter runs; a reference
computes each request with one mask and one softmax, in fp64 or in fp32, and the largest difference is read
back. Nothing is shared with the harness's own drawing, building, golden or judging, so that the ratio of
the two speeds is the harness's doing. No row bound, no LSE, no certificate and no record come out of it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cases.batch import AttentionBatch
from cases.paging import Paging
from cases.recipes import LogicalData, torch_dtype
from cases.schema import AttentionCase, Poison, pages_owned
from harness.adapters.protocol import Adapter

ROWS_AT_A_TIME = 1 << 27  # scores of one piece of a request: a whole request where it fits


def straight_batch(case: AttentionCase, device: torch.device) -> AttentionBatch:
    """A batch of `case` with random data, built by a loop over its requests; NHD layout only."""
    dtype = torch_dtype(case.dtype)
    generator = torch.Generator(device=device).manual_seed(case.seed)

    def draw(rows: int, heads: int, dim: int) -> Tensor:
        return torch.randn((rows, heads, dim), generator=generator, device=device).to(dtype)

    owned = tuple(pages_owned(r, case.page_size) for r in case.requests)
    num_pages = sum(owned) + 2
    order = torch.randperm(num_pages - 1, generator=torch.Generator().manual_seed(case.seed)) + 1
    table = torch.zeros((case.num_requests, max(owned)), dtype=torch.int32)
    pool_shape = (num_pages, case.page_size, case.num_kv_heads)
    k_pool = torch.zeros((*pool_shape, case.head_dim_qk), dtype=dtype, device=device)
    v_pool = torch.zeros((*pool_shape, case.head_dim_vo), dtype=dtype, device=device)
    qs, ks, vs, new_slots, new_keys = [], [], [], [], []
    start = kv_start = 0
    for i, request in enumerate(case.requests):
        pages = order[start : start + owned[i]]
        table[i, : owned[i]] = pages
        start += owned[i]
        k = draw(request.kv_len, case.num_kv_heads, case.head_dim_qk)
        v = draw(request.kv_len, case.num_kv_heads, case.head_dim_vo)
        positions = torch.arange(request.kv_len)
        slots = (pages[positions // case.page_size] * case.page_size + positions % case.page_size).to(device)
        cached = slots[: request.prefix_len]
        k_pool.view(-1, *k.shape[1:])[cached] = k[: request.prefix_len]
        v_pool.view(-1, *v.shape[1:])[cached] = v[: request.prefix_len]
        qs.append(draw(request.extend_len, case.num_qo_heads, case.head_dim_qk))
        ks.append(k)
        vs.append(v)
        new_slots.append(slots[request.prefix_len :])
        new_keys.append(torch.arange(kv_start + request.prefix_len, kv_start + request.kv_len, device=device))
        kv_start += request.kv_len
    prefix = torch.tensor([r.prefix_len for r in case.requests], dtype=torch.int32)
    extend = torch.tensor([r.extend_len for r in case.requests], dtype=torch.int32)
    qo_indptr = torch.zeros(case.num_requests + 1, dtype=torch.int32)
    qo_indptr[1:] = torch.cumsum(extend, 0)
    return AttentionBatch(
        case=case,
        device=device,
        data=LogicalData(torch.cat(qs), torch.cat(ks), torch.cat(vs), None),
        k_pool=k_pool,
        v_pool=v_pool,
        paging=Paging(table.to(device), owned, num_pages, case.page_size),
        qo_indptr=qo_indptr.to(device),
        prefix_lens=prefix.to(device),
        extend_lens=extend.to(device),
        new_slots=torch.cat(new_slots),
        poison=Poison.ZERO,
        new_keys=torch.cat(new_keys),
    )


def eager_reference(case: AttentionCase, data: LogicalData, dtype: torch.dtype) -> Tensor:
    """[total_q, num_qo_heads, head_dim_vo] in `dtype`: one request after another, mask and softmax written out."""
    outs = []
    q_start = kv_start = 0
    for request in case.requests:
        q = data.q[q_start : q_start + request.extend_len].to(dtype).transpose(0, 1)
        k = data.k[kv_start : kv_start + request.kv_len].to(dtype).transpose(0, 1)
        v = data.v[kv_start : kv_start + request.kv_len].to(dtype).transpose(0, 1)
        k, v = k.repeat_interleave(case.group_size, 0), v.repeat_interleave(case.group_size, 0)
        key = torch.arange(request.kv_len, device=q.device)
        rows = max(1, ROWS_AT_A_TIME // max(1, case.num_qo_heads * request.kv_len))
        for start in range(0, request.extend_len, rows):
            piece = q[:, start : start + rows]
            position = torch.arange(start, start + piece.shape[1], device=q.device)[:, None] + request.prefix_len
            seen = key <= position if case.causal else torch.ones_like(key <= position)
            if case.window_left is not None:
                seen = seen & (key >= position - case.window_left)
            scores = (piece @ k.transpose(1, 2) * case.scale).masked_fill(~seen, -torch.inf)
            outs.append((torch.softmax(scores, -1) @ v).transpose(0, 1))
        q_start += request.extend_len
        kv_start += request.kv_len
    return torch.cat(outs)


def straight_check(case: AttentionCase, adapter: Adapter, device: torch.device, dtype: torch.dtype) -> float:
    """Build, run and compare one case; the largest difference, read back to the host."""
    batch = straight_batch(case, device)
    output = adapter.run(adapter.plan(batch), batch)
    expected = eager_reference(case, batch.data, dtype)
    return float((output.out.to(dtype) - expected).abs().max())
