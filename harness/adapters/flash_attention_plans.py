"""Plans of the FlashAttention paths: lengths and page table of one paged varlen call. Pure torch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cases.batch import AttentionBatch
from cases.paging import Paging
from cases.ragged import indptr
from cases.schema import Request, pages_owned


@dataclass(frozen=True, slots=True)
class FlashAttentionPlan:
    """Arguments of one paged varlen call; the new rows are written to the pool before it.

    cu_seqlens_q: int32 [num_requests+1]
    seqused_k:    int32 [num_requests], keys that the kernel reads: S = prefix + extend
    page_table:   int32 [num_requests, columns], columns covering the largest seqused_k
    max_seqlen_q, max_seqlen_k: host maxima over the requests, max_i(P_i + E_i) for k
    window_size:  (left, right), -1 is unlimited; (L, 0) for a causal window
    softcap:      0.0 is off
    num_splits:   None is the library's heuristic
    sinks:        float32 [num_qo_heads] or None
    append_slots: int64 [total_q], pool slots the new rows are written to; None: nothing is written
    """

    cu_seqlens_q: Tensor
    seqused_k: Tensor
    page_table: Tensor
    max_seqlen_q: int
    max_seqlen_k: int
    causal: bool
    window_size: tuple[int, int]
    softcap: float
    softmax_scale: float
    num_splits: int | None
    sinks: Tensor | None
    append_slots: Tensor | None


def plan_flash_attention(batch: AttentionBatch) -> FlashAttentionPlan:
    """The plan of DRAFT_EXTEND_V2 and of every other mode over the paged cache.

    A window without causality opens everything to the right: (L, -1).
    """
    case = batch.case
    left = -1 if case.window_left is None else case.window_left
    return FlashAttentionPlan(
        cu_seqlens_q=batch.qo_indptr,
        seqused_k=batch.kv_lens,
        page_table=trimmed(batch.paging, case.max_kv_len),
        max_seqlen_q=case.max_extend_len,
        max_seqlen_k=case.max_kv_len,
        causal=case.causal,
        window_size=(left, 0 if case.causal else -1) if left >= 0 else (-1, -1),
        softcap=case.logits_soft_cap or 0.0,
        softmax_scale=case.scale,
        num_splits=case.execution.num_splits,
        sinks=batch.data.sinks,
        append_slots=batch.new_slots,
    )


def trimmed(paging: Paging, max_kv_len: int) -> Tensor:
    """The page table's first ceil(max_kv_len / page_size) columns, at least one, contiguous."""
    columns = max(1, -(-max_kv_len // paging.page_size))
    return paging.page_table[:, :columns].contiguous()


@dataclass(frozen=True, slots=True)
class GraphCapture:
    """What a CUDA graph is captured for: another batch of as many requests.

    requests:     their lengths while capturing
    total_q:      rows of the static q and out buffers
    max_seqlen_q: host maximum, baked in
    columns:      of the static page table; as engines do, max_seqlen_k is baked as columns * page_size,
                  because live lengths are not known to the host
    """

    requests: tuple[Request, ...]
    total_q: int
    max_seqlen_q: int
    columns: int

    @property
    def extends(self) -> list[int]:
        return [r.extend_len for r in self.requests]

    @property
    def kv_lens(self) -> list[int]:
        return [r.kv_len for r in self.requests]


def plan_capture(batch: AttentionBatch) -> GraphCapture:
    """The capture that a case asks for. Static columns cover every page that either batch owns."""
    case = batch.case
    captured = case.execution.capture_requests
    assert captured is not None, "the case asks for no graph"
    owned = max(pages_owned(r, case.page_size) for r in captured)
    return GraphCapture(
        requests=captured,
        total_q=sum(r.extend_len for r in captured),
        max_seqlen_q=max(r.extend_len for r in captured),
        columns=max(owned, batch.page_table.shape[1]),
    )


def capture_metadata(capture: GraphCapture, num_pages: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """cu_seqlens_q, seqused_k and page_table while capturing: true lengths, and any pages of the pool.

    What the capture computes is thrown away, so its page table only has to stay inside the pool.
    """
    count = len(capture.requests)
    table = torch.arange(count * capture.columns, dtype=torch.int32) % num_pages
    return (
        indptr(capture.extends, device),
        torch.tensor(capture.kv_lens, dtype=torch.int32, device=device),
        table.view(count, capture.columns).to(device),
    )
