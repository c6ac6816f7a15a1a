"""Slots that nobody may read: read, and multiplied by zero or attended to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from cases.schema import AttentionCase, Mode, Poison, Request
from harness.emulation.hooks import RequestCall, Tile
from harness.faults.catalogue import building as b
from harness.faults.protocol import Fault, FaultClass

LANES = 256

TAIL = AttentionCase(requests=(Request(3, 2),), page_size=4)


def to_page_end(request: RequestCall, low: int, high: int) -> tuple[int, int]:
    """The whole last page is loaded."""
    if not b.is_paged(request.launch) or high < request.kv_len:
        return low, high
    return low, b.round_up(high, request.launch.page_size or 1)


def from_unowned_page(request: RequestCall, operand: str, positions: Tensor, slots: Tensor) -> Tensor:
    """V past the keys comes from page 0, which nobody owns: what a table entry beyond the length names."""
    return torch.where(positions >= request.kv_len, 0, slots) if operand == "v" else slots


def tail_visible(tile: Tile, visible: Tensor) -> Tensor:
    if not b.is_paged(tile.request.launch):
        return visible
    return visible | (tile.positions >= tile.request.kv_len)


def _partial_last_page(case: AttentionCase) -> bool:
    return any(r.kv_len % case.page_size for r in b.active(case))


partial_page = b.unless(_partial_last_page, "every request ends on a page edge")


def _padding_lanes() -> dict[str, Callable[..., Any]]:
    """Decode: lanes up to a multiple of 256 count as keys of score 0 and V = 0."""
    seen: dict[str, Any] = {"request": None, "top": None}

    def missing(request: RequestCall) -> int:
        return b.round_up(request.kv_len, LANES) - request.kv_len if request.qo_len == 1 else 0

    def score(tile: Tile, raw: Tensor, scores: Tensor) -> Tensor:
        """Keeps the request's running maximum, which the row sum is relative to."""
        del raw
        largest = scores.amax(-1, keepdim=True)
        if seen["request"] is tile.request:
            largest = torch.maximum(seen["top"], largest)
        if tile.split == 0:
            seen["request"], seen["top"] = tile.request, largest
        return scores

    def row_sum(tile: Tile, total: Tensor) -> Tensor:
        last = tile.positions.numel() and int(tile.positions[-1]) == tile.request.kv_len - 1
        if tile.split or not missing(tile.request) or not last:
            return total
        return total + missing(tile.request) * torch.exp(-seen["top"])

    return {"score": score, "row_sum": row_sum}


def _decode_with_free_lanes(case: AttentionCase) -> bool:
    return any(r.extend_len == 1 and r.kv_len % LANES for r in case.requests)


FAULTS: tuple[Fault, ...] = (
    Fault(
        "page-tail-times-zero",
        FaultClass.GARBAGE_SLOTS,
        "the unused tail of the last page is loaded with weight 0: 0 * NaN",
        (
            "flashinfer #941",
            "flashinfer PR #942",
            "flash-attn #1745",
            "flash-attn #1974",
            "flash-attn #2374",
            "vllm PR #35219",
            "vllm #39146",
        ),
        on_kernel=b.kernel(key_range=to_page_end),
        blind=b.first_of(b.unless(lambda case: case.poison is Poison.NAN, "unused slots hold no NaN"), partial_page),
        adapters=("flashinfer-paged-fa2*",),
        smallest=TAIL.replace(poison="nan"),
    ),
    Fault(
        "page-table-tail-dereferenced",
        FaultClass.GARBAGE_SLOTS,
        "table entries beyond the live length are followed: pages of nobody, with weight 0",
        ("vllm #42494",),
        on_kernel=b.kernel(key_range=to_page_end, slot=from_unowned_page),
        blind=b.first_of(
            b.unless(lambda case: case.poison is not Poison.ZERO, "unused slots are zeroed"), partial_page
        ),
        adapters=b.SINGLE_PASS,
        smallest=TAIL,
    ),
    Fault(
        "page-tail-attended",
        FaultClass.GARBAGE_SLOTS,
        "every row also attends to the unused tail of the last page",
        ("flash-attn #1745",),
        on_kernel=b.kernel(key_range=to_page_end, mask=tail_visible),
        blind=partial_page,
        adapters=b.SINGLE_PASS,
        smallest=TAIL,
    ),
    Fault(
        "padding-lanes-in-softmax",
        FaultClass.GARBAGE_SLOTS,
        "decode: padding lanes up to 256 keys count in the softmax denominator",
        ("flashinfer #3716", "flashinfer PR #3717"),
        on_kernel=b.kernel_with_memory(_padding_lanes),
        blind=b.unless(_decode_with_free_lanes, "no request of one row, or all have a multiple of 256 keys"),
        adapters=b.SINGLE_PASS,
        smallest=AttentionCase(requests=(Request(15, 1),), mode=Mode.DECODE),
    ),
)
