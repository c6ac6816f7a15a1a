"""vLLM's metadata for a batch, and a forward pass captured for one batch and replayed on another.

Follows v1/worker/gpu_model_runner.py (0.22): a graph's inputs are persistent buffers, the builder runs before
capture and before each replay and renews its own buffers, and what lies past the batch is padding: lengths 0,
`query_start_loc` at its last value, slots -1. Capture passes max_model_len as the longest kv. Without a GPU the
captured call is made again: host integers keep their value of the capture.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cases.batch import AttentionBatch
from cases.schema import Mode, Request
from harness.adapters.vllm.order import Order
from harness.adapters.vllm.setup import Parts, Setup

PAD_SLOT = -1  # v1/attention/backends/utils.py, PAD_SLOT_ID


@dataclass(slots=True)
class Buffers:
    """Inputs at fixed addresses: q, k, v [tokens, heads, dim]; int32 metadata; slots int64 [tokens]."""

    q: Tensor
    k: Tensor
    v: Tensor
    slots: Tensor
    query_start_loc: Tensor
    seq_lens: Tensor
    block_table: Tensor


@dataclass(slots=True)
class Captured:
    """A graph, its inputs and its output; max_query_len and max_seq_len are the capture's."""

    buffers: Buffers
    out: Tensor
    max_query_len: int
    max_seq_len: int
    replay: Callable[[], None]


def common_metadata(batch: AttentionBatch, order: Order) -> Any:
    """CommonAttentionMetadata of an eager step, as GPUModelRunner._build_attention_metadata fills it."""
    case = batch.case
    requests = order.of_requests(case.requests)
    starts = _starts([r.extend_len for r in requests])
    return _common(
        query_start_loc=torch.tensor(starts, dtype=torch.int32, device=batch.device),
        seq_lens=torch.tensor([r.kv_len for r in requests], dtype=torch.int32, device=batch.device),
        requests=requests,
        max_query_len=case.max_extend_len,
        max_seq_len=case.max_kv_len,
        block_table=order.of_table(batch.page_table),
        slots=order.of_rows(batch.new_slots),
    )


def build(builder: Any, mode: Mode, common: Any) -> Any:
    """The metadata, by the call that vLLM makes for this mode."""
    if mode is Mode.DRAFT_EXTEND_V2:
        return builder.build_for_drafting(common_attn_metadata=common, draft_index=0)
    return builder.build(common_prefix_len=0, common_attn_metadata=common)


def forward(
    parts: Parts, metadata: Any, cache: Any, q: Tensor, k: Tensor, v: Tensor, slots: Tensor, out: Tensor
) -> None:
    """The cache update and the attention of one layer, in vLLM's order (model_executor/layers/attention)."""
    parts.impl.do_kv_cache_update(parts.layer, k, v, cache, slots)
    parts.impl.forward(parts.layer, q, k, v, cache, metadata, out)


def capture(setup: Setup, parts: Parts, cache: Any, batch: AttentionBatch) -> Captured:
    """Capture for the case's capture_requests; nothing of the case's data is read."""
    case, device = batch.case, batch.device
    requests = case.execution.capture_requests
    assert requests is not None
    tokens = sum(r.extend_len for r in requests)
    columns = -(-setup.max_model_len // setup.page_size)
    starts = _starts([r.extend_len for r in requests])

    def ints(values: Sequence[int]) -> Tensor:
        return torch.tensor(list(values), dtype=torch.int32, device=device)

    buffers = Buffers(
        q=batch.q.new_zeros((tokens, *batch.q.shape[1:])),
        k=batch.k_new.new_zeros((tokens, *batch.k_new.shape[1:])),
        v=batch.v_new.new_zeros((tokens, *batch.v_new.shape[1:])),
        slots=torch.full((tokens,), PAD_SLOT, dtype=torch.int64, device=device),
        query_start_loc=ints(starts),
        seq_lens=ints([r.kv_len for r in requests]),
        block_table=torch.zeros((len(requests), columns), dtype=torch.int32, device=device),
    )
    out = batch.q.new_zeros((tokens, case.num_qo_heads, case.head_dim_vo))
    longest = max(r.extend_len for r in requests)
    common = _common(
        query_start_loc=buffers.query_start_loc,
        seq_lens=buffers.seq_lens,
        requests=requests,
        max_query_len=longest,
        max_seq_len=setup.max_model_len,
        block_table=buffers.block_table,
        slots=buffers.slots,
    )
    metadata = parts.builder.build_for_cudagraph_capture(common)

    def once() -> None:
        forward(parts, metadata, cache, buffers.q, buffers.k, buffers.v, buffers.slots, out)

    replay = _record(once, out) if device.type == "cuda" else once
    return Captured(buffers, out, longest, setup.max_model_len, replay)


def load(parts: Parts, captured: Captured, batch: AttentionBatch, order: Order) -> Any:
    """Copy a batch into the graph's buffers and let the builder renew its own, as before a replay."""
    case, buffers, tokens = batch.case, captured.buffers, batch.case.total_q
    count = case.num_requests
    for buffer, rows in ((buffers.q, batch.q), (buffers.k, batch.k_new), (buffers.v, batch.v_new)):
        buffer[:tokens].copy_(order.of_rows(rows))
    buffers.slots.fill_(PAD_SLOT)
    buffers.slots[:tokens].copy_(order.of_rows(batch.new_slots))
    requests = order.of_requests(case.requests)
    starts = _starts([r.extend_len for r in requests])
    buffers.query_start_loc[: count + 1].copy_(torch.tensor(starts, device=batch.device))
    buffers.query_start_loc[count + 1 :].fill_(tokens)
    buffers.seq_lens.zero_()
    buffers.seq_lens[:count].copy_(torch.tensor([r.kv_len for r in requests], device=batch.device))
    buffers.block_table[:count, : batch.page_table.shape[1]].copy_(order.of_table(batch.page_table))
    padding = [Request(0, 0)] * (buffers.seq_lens.shape[0] - count)
    common = _common(
        query_start_loc=buffers.query_start_loc,
        seq_lens=buffers.seq_lens,
        requests=(*requests, *padding),
        max_query_len=captured.max_query_len,
        max_seq_len=captured.max_seq_len,
        block_table=buffers.block_table,
        slots=buffers.slots,
    )
    return build(parts.builder, Mode.EXTEND, common)


def _common(
    *,
    query_start_loc: Tensor,
    seq_lens: Tensor,
    requests: Sequence[Request],
    max_query_len: int,
    max_seq_len: int,
    block_table: Tensor,
    slots: Tensor,
) -> Any:
    from vllm.v1.attention.backend import CommonAttentionMetadata

    lengths = torch.tensor([r.kv_len for r in requests], dtype=torch.int32)
    return CommonAttentionMetadata(
        query_start_loc=query_start_loc,
        query_start_loc_cpu=torch.tensor(_starts([r.extend_len for r in requests]), dtype=torch.int32),
        seq_lens=seq_lens,
        seq_lens_cpu_upper_bound=lengths,
        _seq_lens_cpu=lengths,
        num_reqs=len(requests),
        num_actual_tokens=int(slots.shape[0]),
        max_query_len=max_query_len,
        max_seq_len=max_seq_len,
        block_table_tensor=block_table,
        slot_mapping=slots,
        causal=True,
    )


def _starts(counts: Sequence[int]) -> list[int]:
    starts = [0]
    for count in counts:
        starts.append(starts[-1] + count)
    return starts


def _record(once: Callable[[], None], out: Tensor) -> Callable[[], None]:
    """A CUDA graph of `once`, which writes `out`."""
    from harness.adapters.flash_attention_library import CudaGraph

    def call() -> tuple[Tensor, Tensor]:
        once()
        return out, out

    return CudaGraph(call).replay
