"""Split-kv and merging: partial states lost, misplaced, or combined with the wrong weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from cases.schema import AttentionCase, Execution, Mode, Request
from harness.emulation.hooks import Launch, RequestCall
from harness.emulation.kernel import KV_TILE
from harness.faults.catalogue import building as b
from harness.faults.protocol import Fault, FaultClass

HEURISTIC_KEYS = 512  # keys per split where the library chooses (harness/emulation/flashinfer.py)

SPLIT = AttentionCase(requests=(Request(199, 1), Request(260, 1)), mode=Mode.DECODE, execution=Execution(num_splits=2))
MERGE = AttentionCase(requests=(Request(5, 2),))

Bounds = list[tuple[int, int]]


def _loaded(case: AttentionCase, request: Request) -> int:
    first = 0 if case.window_left is None else max(0, request.prefix_len - case.window_left)
    return request.kv_len - first


def splits_of(case: AttentionCase, request: Request) -> int:
    """Splits that some path makes of a request's keys: those asked for, or FlashInfer's by length."""
    asked = case.execution.num_splits
    asked = -(-case.max_kv_len // HEURISTIC_KEYS) if asked is None else asked
    return max(1, min(asked, -(-_loaded(case, request) // KV_TILE)))


def _is_split(case: AttentionCase) -> bool:
    return any(splits_of(case, r) > 1 for r in b.active(case))


is_split = b.unless(_is_split, "no request's keys are split")


# -- key ranges ----------------------------------------------------------------------------------
def without_last(request: RequestCall, bounds: Bounds) -> Bounds:
    del request
    return bounds[:-1] if len(bounds) > 1 else bounds


def of_twice_as_many(request: RequestCall, bounds: Bounds) -> Bounds:
    """Metadata for twice as many splits as are launched: each covers the first half of its range."""
    del request
    return [(low, low + (high - low + 1) // 2) for low, high in bounds] if len(bounds) > 1 else bounds


def chunks_rounded_down(request: RequestCall, bounds: Bounds) -> Bounds:
    """The splitter rounds its chunk down where the counter rounded up: the end is not covered."""
    del request
    low, high = bounds[0][0], bounds[-1][1]
    chunk = (high - low) // len(bounds)
    if len(bounds) < 2:
        return bounds
    return [(low + i * chunk, low + (i + 1) * chunk) for i in range(len(bounds))]


def first_key_lost(request: RequestCall, bounds: Bounds) -> Bounds:
    del request
    return [bounds[0], *((low + 1, high) for low, high in bounds[1:])]


def _chunks_uneven(case: AttentionCase) -> bool:
    return any((count := splits_of(case, r)) > 1 and _loaded(case, r) % count for r in b.active(case))


# -- where partial results go --------------------------------------------------------------------
def onto_request_0(request: RequestCall, start: int) -> int:
    return 0 if request.launch.num_splits > 1 else start


def heads_last(launch: Launch, lse: Tensor) -> Tensor:
    """LSE as [tokens, heads], whatever the library's layout."""
    return lse.transpose(0, 1) if launch.kernel.startswith("flash_attention") else lse


def swapped_heads(launch: Launch, values: Tensor) -> Tensor:
    """LSE of head (h // g, h % g) where that of (h % g, h // g) belongs."""
    if launch.num_splits < 2:
        return values
    by_head = heads_last(launch, values)
    mixed = by_head.reshape(-1, launch.num_kv_heads, launch.group_size).transpose(1, 2).reshape(by_head.shape)
    return heads_last(launch, mixed).contiguous()


def _padded_lse() -> dict[str, Callable[..., Any]]:
    """LSE rows of request i are stored from i * max_seqlen_q on."""
    rows: list[tuple[int, int, int]] = []

    def row_offset(request: RequestCall, start: int) -> int:
        rows.append((request.index, start, request.qo_len))
        return start

    def lse(launch: Launch, values: Tensor) -> Tensor:
        by_row = heads_last(launch, values)
        stored = torch.full_like(by_row, torch.nan)
        for index, start, count in rows:
            at = index * (launch.max_seqlen_q or 0)
            fits = max(0, min(count, stored.shape[0] - at))
            stored[at : at + fits] = by_row[start : start + fits]
        rows.clear()
        return heads_last(launch, stored).contiguous()

    return {"row_offset": row_offset, "lse": lse}


def _extends_uneven(case: AttentionCase) -> bool:
    start = 0
    longest = case.max_extend_len
    captured = case.execution.capture_requests
    if captured is not None:
        longest = max(r.extend_len for r in captured)
    for index, request in enumerate(case.requests):
        if request.extend_len and start != index * longest:
            return True
        start += request.extend_len
    return False


def rows_at_head_size(launch: Launch, values: Tensor) -> Tensor:
    """Combine moves on by one head per row instead of by all of them."""
    if launch.num_splits < 2:
        return values
    tokens, heads, dim = values.shape
    flat = torch.full_like(values, torch.nan).view(tokens * heads, dim)
    for row in range(tokens):
        flat[row : row + heads] = values[row]
    return flat.view(tokens, heads, dim)


# -- weights -------------------------------------------------------------------------------------
def splits_reversed(where: str, weights: Tensor) -> Tensor:
    return weights.flip(0) if where == "split" else weights


def of_last_split(where: str, value: Tensor, parts: Tensor) -> Tensor:
    return parts[-1] if where == "split" else value


def equal_legs(where: str, weights: Tensor) -> Tensor:
    return torch.full_like(weights, 0.5) if where == "merge_state" else weights


def of_second_leg(where: str, value: Tensor, parts: Tensor) -> Tensor:
    return parts[1] if where == "merge_state" else value


FAULTS: tuple[Fault, ...] = (
    Fault(
        "combine-lands-on-request-0",
        FaultClass.SPLIT_MERGE,
        "the output's batch stride is 0: combined rows of every request are written to the first",
        (
            "flash-attn #1217",
            "flash-attn PR #2550",
            "flash-attn #2812",
            "pytorch #194167",
            "torchtitan #3235",
        ),
        on_kernel=b.kernel(row_offset=onto_request_0),
        blind=b.first_of(is_split, b.several_requests),
        adapters=b.SINGLE_PASS,
        smallest=SPLIT,
    ),
    Fault(
        "split-lse-heads-swapped",
        FaultClass.SPLIT_MERGE,
        "LSE of grouped heads is stored in the order before the group swap",
        ("vllm-flash-attention PR #87",),
        on_kernel=b.kernel(lse=swapped_heads),
        blind=b.first_of(
            is_split,
            b.unless(lambda case: case.group_size > 1 and case.num_kv_heads > 1, "one kv head, or one head per group"),
        ),
        adapters=b.SINGLE_PASS,
        smallest=SPLIT,
    ),
    Fault(
        "lse-rows-at-padded-offset",
        FaultClass.SPLIT_MERGE,
        "LSE of request i is stored from row i * max_seqlen_q on, in a packed buffer",
        ("flash-attn PR #2573", "vllm-flash-attention #139"),
        on_kernel=b.kernel_with_memory(_padded_lse),
        blind=b.unless(_extends_uneven, "all requests have equally many new rows"),
        adapters=b.FLASH_ATTENTION,
        smallest=AttentionCase(requests=(Request(3, 1), Request(3, 2))),
    ),
    Fault(
        "split-weights-transposed",
        FaultClass.SPLIT_MERGE,
        "combine reads the splits' LSE with fixed strides: each split gets another one's weight",
        ("flash-attn PR #2388",),
        on_kernel=b.kernel(merge=splits_reversed),
        blind=is_split,
        adapters=b.SINGLE_PASS,
        smallest=SPLIT,
    ),
    Fault(
        "lse-of-last-split",
        FaultClass.SPLIT_MERGE,
        "the returned LSE is that of the last split",
        ("flashinfer PR #58", "flashinfer #50"),
        on_kernel=b.kernel(merged_lse=of_last_split),
        blind=is_split,
        adapters=b.SINGLE_PASS,
        smallest=SPLIT,
    ),
    Fault(
        "last-split-dropped",
        FaultClass.SPLIT_MERGE,
        "the last split is left out of the reduction",
        ("flashinfer PR #1055", "flashinfer PR #1109"),
        on_kernel=b.kernel(split=without_last),
        blind=is_split,
        adapters=b.SINGLE_PASS,
        smallest=SPLIT,
    ),
    Fault(
        "split-loses-its-first-key",
        FaultClass.SPLIT_MERGE,
        "every split but the first starts one key late",
        ("flashinfer #4749",),
        on_kernel=b.kernel(split=first_key_lost),
        blind=is_split,
        adapters=b.SINGLE_PASS,
        smallest=SPLIT,
    ),
    Fault(
        "split-metadata-of-other-count",
        FaultClass.PLAN_STALENESS,
        "scheduler metadata are made for twice the splits that are launched: half of the keys are not read",
        ("vllm PR #25490", "vllm PR #35082", "vllm-flash-attention #162"),
        on_kernel=b.kernel(split=of_twice_as_many),
        blind=is_split,
        adapters=b.SINGLE_PASS,
        smallest=SPLIT,
    ),
    Fault(
        "split-chunks-rounded-down",
        FaultClass.PLAN_STALENESS,
        "chunk size and chunk count come from two formulas: the last keys are in no chunk",
        ("flashinfer PR #641", "flashinfer PR #728", "flashinfer #726"),
        on_kernel=b.kernel(split=chunks_rounded_down),
        blind=b.unless(_chunks_uneven, "no request's keys are split unevenly"),
        adapters=b.SINGLE_PASS,
        smallest=SPLIT,
    ),
    Fault(
        "combine-rows-at-head-size",
        FaultClass.SPLIT_MERGE,
        "combine moves on by one head per row: rows overwrite each other's heads",
        ("FlagGems #5235",),
        on_kernel=b.kernel(output=rows_at_head_size),
        blind=b.first_of(
            is_split, b.unless(lambda case: case.total_q > 1 and case.num_qo_heads > 1, "one row, or one head")
        ),
        adapters=b.SINGLE_PASS,
        smallest=SPLIT,
    ),
    Fault(
        "merge-ignores-lse",
        FaultClass.SPLIT_MERGE,
        "the two legs are averaged instead of weighed by their LSE",
        on_kernel=b.kernel(merge=equal_legs),
        blind=b.has_prefix,
        adapters=b.FLASHINFER_MERGE,
        smallest=MERGE,
    ),
    Fault(
        "lse-of-prefix-leg",
        FaultClass.SPLIT_MERGE,
        "the LSE returned after the merge is that of the prefix leg",
        ("flashinfer PR #58",),
        on_kernel=b.kernel(merged_lse=of_second_leg),
        blind=b.has_prefix,
        adapters=b.FLASHINFER_MERGE,
        smallest=MERGE,
    ),
)
