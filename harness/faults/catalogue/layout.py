"""Layout and strides: right slots, wrong memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from cases.batch import AttentionBatch
from cases.schema import AttentionCase, Request
from harness.adapters.flash_attention_plans import FlashAttentionPlan
from harness.emulation.hooks import Launch, RequestCall
from harness.faults.catalogue import building as b
from harness.faults.protocol import Fault, FaultClass

PAIR = AttentionCase(requests=(Request(5, 2),), page_size=4)


def _halved(slots: Tensor, page_size: int) -> Tensor:
    """Half the page stride: pages overlap by half."""
    return slots // page_size * page_size // 2 + slots % page_size


def page_stride_halved(request: RequestCall, operand: str, positions: Tensor, slots: Tensor) -> Tensor:
    del operand, positions
    return _halved(slots, request.launch.page_size or 1) if b.is_paged(request.launch) else slots


def append_stride_halved(plan: FlashAttentionPlan, batch: AttentionBatch) -> FlashAttentionPlan | None:
    if plan.append_slots is None:
        return None
    return dataclasses.replace(plan, append_slots=_halved(plan.append_slots, batch.case.page_size))


def heads_first(request: RequestCall, operand: str, rows: Tensor) -> Tensor:
    """q [rows, heads, dim] read with the strides of [heads, rows, dim]."""
    del request
    return rows.reshape(rows.shape[1], rows.shape[0], -1).transpose(0, 1) if operand == "q" else rows


def _other_dim() -> dict[str, Callable[..., Any]]:
    """V rows read at the stride of K rows."""
    seen = {"dim": 0}

    def load(request: RequestCall, operand: str, rows: Tensor) -> Tensor:
        del request
        if operand == "k":
            seen["dim"] = rows.shape[-1]
        if operand != "v" or seen["dim"] == rows.shape[-1]:
            return rows
        flat = rows.reshape(-1)
        count, heads, dim = rows.shape
        starts = torch.arange(count * heads, device=rows.device)[:, None] * seen["dim"]
        at = (starts + torch.arange(dim, device=rows.device)) % flat.numel()
        return flat[at].view(count, heads, dim)

    return {"load": load}


def next_kv_head(launch: Launch, kv_heads: Tensor) -> Tensor:
    return (kv_heads + 1) % launch.num_kv_heads


def interleaved_heads(launch: Launch, kv_heads: Tensor) -> Tensor:
    """h % num_kv_heads instead of h // group."""
    return torch.arange(launch.num_qo_heads, device=kv_heads.device) % launch.num_kv_heads


FAULTS: tuple[Fault, ...] = (
    Fault(
        "page-stride-halved",
        FaultClass.LAYOUT,
        "the page stride is rebuilt from sizes: half of what it is where K and V share a block",
        ("aiter PR #3498", "flashinfer #3856"),
        on_kernel=b.kernel(slot=page_stride_halved),
        adapters=b.SINGLE_PASS,
        smallest=PAIR,
    ),
    Fault(
        "append-stride-halved",
        FaultClass.LAYOUT,
        "new rows are written with the page stride of a packed cache",
        ("flashinfer PR #527",),
        on_plan=b.by_plan(flash=append_stride_halved),
        adapters=b.FLASH_ATTENTION,
        smallest=PAIR,
    ),
    Fault(
        "queries-read-heads-first",
        FaultClass.LAYOUT,
        "q is read with fixed strides: heads and rows swapped",
        ("flashinfer PR #2414",),
        on_kernel=b.kernel(load=heads_first),
        blind=b.unless(
            lambda case: case.max_extend_len > 1 and case.num_qo_heads > 1, "one row per request, or one head"
        ),
        adapters=b.SINGLE_PASS,
        smallest=PAIR,
    ),
    Fault(
        "v-read-with-k-stride",
        FaultClass.LAYOUT,
        "V is addressed with the strides (or the head_dim) of K",
        ("FlagAttention #45", "FlagAttention PR #46", "flash-attn e3b2400a", "flash-attn 9e07d6d3"),
        on_kernel=b.kernel_with_memory(_other_dim),
        blind=b.unless(lambda case: case.head_dim_qk != case.head_dim_vo, "head_dim_qk and head_dim_vo are equal"),
        smallest=PAIR.replace(head_dim_qk=128),
    ),
    Fault(
        "kv-head-of-next-group",
        FaultClass.LAYOUT,
        "each query head reads the kv head of the next group",
        on_kernel=b.kernel(head_map=next_kv_head),
        blind=b.unless(lambda case: case.num_kv_heads > 1, "one kv head"),
        smallest=PAIR,
    ),
    Fault(
        "kv-heads-interleaved",
        FaultClass.LAYOUT,
        "query head h reads kv head h % num_kv_heads",
        on_kernel=b.kernel(head_map=interleaved_heads),
        blind=b.unless(lambda case: case.num_kv_heads > 1 and case.group_size > 1, "one kv head, or no groups"),
        smallest=PAIR,
    ),
)
