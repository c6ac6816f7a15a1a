"""Window: the left bound missing, one off, applied to whole tiles or requests instead of to each query.

L is window_left, P and E a request's prefix and extend.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from cases.batch import AttentionBatch
from cases.schema import AttentionCase, Mode, Request
from harness.adapters.flash_attention_plans import FlashAttentionPlan
from harness.adapters.flashinfer_plans import SwaMergePlan
from harness.emulation.hooks import EmulatedCudaError, RequestCall, Tile
from harness.faults.catalogue import building as b
from harness.faults.catalogue.building import EmulatedHang
from harness.faults.protocol import Fault, FaultClass

KV_TILE = 64
QUERY_TILE = 16

TINY = AttentionCase(requests=(Request(5, 2),), window_left=4, page_size=4)


def _window(change: Any) -> Any:
    """The case fields of a planner that uses another window, or None without one."""
    return lambda case: None if case.window_left is None else {"window_left": change(case.window_left)}


# -- legs of the merge recipe --------------------------------------------------------------------
def ragged_leg_without_window(plan: SwaMergePlan, batch: AttentionBatch) -> SwaMergePlan | None:
    if batch.case.window_left is None:
        return None
    return dataclasses.replace(plan, ragged=dataclasses.replace(plan.ragged, window_left=-1))


def window_at_run_only(plan: SwaMergePlan, batch: AttentionBatch) -> SwaMergePlan | None:
    """Planned without a window, run with one: the compiled module has no element test for it."""
    if batch.case.window_left is None:
        return None
    ragged = dataclasses.replace(plan.ragged, window_left=-1, run_window_left=batch.case.window_left)
    return dataclasses.replace(plan, ragged=ragged)


def prefix_leg_without_mask(plan: SwaMergePlan, batch: AttentionBatch) -> SwaMergePlan | None:
    del batch
    if plan.paged is None or plan.paged.custom_mask is None:
        return None
    return dataclasses.replace(plan, paged=dataclasses.replace(plan.paged, custom_mask=None))


def _extend_outgrows(case: AttentionCase) -> bool:
    return case.window_left is not None and case.max_extend_len > case.window_left + 1


extend_outgrows_window = b.unless(_extend_outgrows, "no extend is longer than the window and its own key")


# -- element masks -------------------------------------------------------------------------------
def _reopened(tile: Tile, visible: Tensor, first: Tensor) -> Tensor:
    """Keys from `first` int64 [R] on are open as well, up to the causal edge."""
    right = tile.request.launch.window[1]
    last = tile.request.kv_len if right < 0 else tile.query_positions[:, None] + right + 1
    return visible | ((tile.positions >= first[:, None]) & (tile.positions < last))


def _left_bounds(tile: Tile) -> Tensor | None:
    left = tile.request.launch.window[0]
    return None if left < 0 else (tile.query_positions - left).clamp(min=0)


def bound_of_first_row(tile: Tile, visible: Tensor) -> Tensor:
    first = _left_bounds(tile)
    return visible if first is None else _reopened(tile, visible, first[:1].expand_as(first))


def bound_of_first_tile(tile: Tile, visible: Tensor) -> Tensor:
    """Decode: the tile that the window's left edge falls into is not masked."""
    first = _left_bounds(tile)
    if first is None or tile.request.qo_len > 1:
        return visible
    return _reopened(tile, visible, first // KV_TILE * KV_TILE)


def from_tile_start(request: RequestCall, low: int, high: int) -> tuple[int, int]:
    del request
    return low // KV_TILE * KV_TILE, high


def nothing_visible(tile: Tile, visible: Tensor) -> Tensor:
    return torch.zeros_like(visible) if tile.request.launch.window == (-1, 0) else visible


def bidirectional_span(tile: Tile, visible: Tensor) -> Tensor:
    """Keys of a query tile end at start + L + tile, which holds under causality only."""
    left, right = tile.request.launch.window
    if left < 0 or right >= 0:
        return visible
    rows = torch.arange(tile.request.qo_len, device=visible.device) // QUERY_TILE * QUERY_TILE
    start = (tile.query_positions[rows] - left).clamp(min=0)
    return visible & (tile.positions < (start + left + QUERY_TILE)[:, None])


def _span_too_short(case: AttentionCase) -> bool:
    if case.causal or case.window_left is None:
        return False
    return any(
        r.kv_len > max(r.prefix_len - case.window_left, 0) + case.window_left + QUERY_TILE for r in b.active(case)
    )


def _skipped_tile(request: RequestCall, operand: str, positions: Tensor, slots: Tensor) -> Tensor:
    """V left of every row's window comes from recycled memory: here, from page 0, which nobody owns."""
    left = request.launch.window[0]
    if left < 0 or operand != "v" or not b.is_paged(request.launch):
        return slots
    return torch.where(positions < request.kv_len - request.qo_len - left, 0, slots)


def _tile_reaches_left(case: AttentionCase) -> bool:
    left = case.window_left
    return left is not None and any((r.prefix_len - left) % KV_TILE for r in b.active(case) if r.prefix_len > left)


# -- page tables of window layers ----------------------------------------------------------------
def _untranslated(request: RequestCall, logical: Tensor, physical: Tensor) -> Tensor:
    """Requests with several rows keep page numbers of another pool: here, their logical ones."""
    return logical if request.launch.window[0] >= 0 and request.qo_len > 1 else physical


def _page_as_token(request: RequestCall, logical: Tensor, physical: Tensor) -> Tensor:
    del logical
    return physical // (request.launch.page_size or 1) if request.launch.window[0] >= 0 else physical


def right_bound_too(plan: FlashAttentionPlan, batch: AttentionBatch) -> FlashAttentionPlan | None:
    left = plan.window_size[0]
    return None if left < 0 or batch.case.causal else dataclasses.replace(plan, window_size=(left, left))


def _right_bound_cuts(case: AttentionCase) -> bool:
    left = case.window_left
    return not case.causal and left is not None and any(r.extend_len - 1 > left for r in case.requests)


def _windowed_verify(case: AttentionCase) -> bool:
    return case.window_left is not None and case.mode is Mode.TARGET_VERIFY


def _fp8_window_past_tile(case: AttentionCase) -> bool:
    return case.window_left is not None and case.kv_dtype.startswith("float8") and case.max_kv_len > 256


def _window_below_tile(case: AttentionCase) -> bool:
    return case.window_left is not None and case.window_left + 1 < KV_TILE and case.max_kv_len > 2 * KV_TILE


FAULTS: tuple[Fault, ...] = (
    Fault(
        "window-ignored",
        FaultClass.WINDOW,
        "the window is not passed on: every key up to the causal edge is seen",
        ("sglang PR #26516", "sglang PR #26531", "sglang PR #38756"),
        on_plan=b.replanned(lambda case: None if case.window_left is None else {"window_left": None}),
        blind=b.window_cuts,
        smallest=TINY,
    ),
    Fault(
        "window-one-too-wide",
        FaultClass.WINDOW,
        "the window holds one key more: a count of keys taken for an inclusive radius",
        ("transformers #39408", "transformers PR #40163"),
        on_plan=b.replanned(_window(lambda left: left + 1)),
        blind=b.window_cuts,
        smallest=TINY,
    ),
    Fault(
        "window-one-too-narrow",
        FaultClass.WINDOW,
        "the window holds one key less: an inclusive radius taken for a count of keys",
        ("transformers PR #40163",),
        on_plan=b.replanned(lambda case: {"window_left": case.window_left - 1} if case.window_left else None),
        blind=b.first_of(
            b.unless(lambda case: bool(case.window_left), "no window, or one that holds a single key"),
            b.unless(
                lambda case: any(r.kv_len > (case.window_left or 0) for r in b.active(case)),
                "no query is as far as the window from its first key",
            ),
        ),
        smallest=TINY,
    ),
    Fault(
        "window-twice-too-wide",
        FaultClass.WINDOW,
        "the window is applied on both sides of a doubled radius: 2L keys back",
        ("transformers #39408",),
        on_plan=b.replanned(_window(lambda left: 2 * left)),
        blind=b.first_of(b.window_cuts, b.unless(lambda case: case.window_left != 0, "twice a window of 0 is 0")),
        smallest=TINY,
    ),
    Fault(
        "window-bounds-the-right-too",
        FaultClass.WINDOW,
        "a non-causal window is bounded on the right as well",
        ("transformers #39408",),
        on_plan=b.by_plan(flash=right_bound_too),
        blind=b.unless(_right_bound_cuts, "causal, or no key is further right than the window"),
        adapters=b.FLASH_ATTENTION,
        smallest=AttentionCase(requests=(Request(0, 4),), window_left=1, causal=False),
    ),
    Fault(
        "ragged-leg-window-missing",
        FaultClass.WINDOW,
        "the ragged leg of the merge recipe sees all new rows before its own",
        ("sglang PR #26513",),
        on_plan=b.by_plan(merge=ragged_leg_without_window),
        blind=extend_outgrows_window,
        adapters=b.FLASHINFER_MERGE,
        smallest=AttentionCase(requests=(Request(0, 3),), window_left=1),
    ),
    Fault(
        "window-at-run-only",
        FaultClass.WINDOW,
        "the window is given at run and not at plan: whole tiles are skipped, single keys are not",
        ("sglang PR #31501",),
        on_plan=b.by_plan(merge=window_at_run_only),
        blind=extend_outgrows_window,
        adapters=b.FLASHINFER_MERGE,
        smallest=AttentionCase(requests=(Request(0, 3),), window_left=1),
    ),
    Fault(
        "prefix-leg-mask-missing",
        FaultClass.WINDOW,
        "the paged leg of the merge recipe shows every row the prefix keys of the first row",
        ("sglang PR #26513", "flashinfer PR #441", "flashinfer PR #460"),
        on_plan=b.by_plan(merge=prefix_leg_without_mask),
        blind=b.needs_prefix_mask,
        adapters=b.FLASHINFER_MERGE,
        smallest=TINY,
    ),
    Fault(
        "window-of-first-row",
        FaultClass.WINDOW,
        "one left bound per request, that of its first new row",
        ("sglang PR #31501",),
        on_kernel=b.kernel(mask=bound_of_first_row),
        blind=b.first_of(
            b.window_cuts,
            b.unless(
                lambda case: any(r.extend_len > 1 and r.kv_len - 1 > (case.window_left or 0) for r in case.requests),
                "no request has several rows of which one is past the window",
            ),
        ),
        adapters=b.SINGLE_PASS,
        smallest=TINY,
    ),
    Fault(
        "decode-window-edge-tile-unmasked",
        FaultClass.WINDOW,
        "decode: the tile of the window's left edge is seen whole",
        ("flashinfer PR #2062",),
        on_kernel=b.kernel(mask=bound_of_first_tile, key_range=from_tile_start),
        blind=b.unless(
            lambda case: any(
                r.extend_len == 1 and case.window_left is not None and max(r.prefix_len - case.window_left, 0) % KV_TILE
                for r in case.requests
            ),
            "no request of one row has a window that starts inside a tile",
        ),
        adapters=b.SINGLE_PASS,
        smallest=AttentionCase(requests=(Request(5, 1),), mode=Mode.DECODE, window_left=4),
    ),
    Fault(
        "no-window-is-an-empty-band",
        FaultClass.WINDOW,
        "the sentinel -1 for no window is kept as a literal band: causal rows see nothing",
        ("TransformerEngine #3528", "TransformerEngine PR #3532", "flash-attn #2490"),
        on_kernel=b.kernel(mask=nothing_visible),
        blind=b.unless(lambda case: case.causal and case.window_left is None, "a window, or not causal"),
        adapters=b.SINGLE_PASS,
        smallest=AttentionCase(requests=(Request(0, 1),)),
    ),
    Fault(
        "bidirectional-window-span-short",
        FaultClass.WINDOW,
        "non-causal window: keys past start + L + tile are dropped, a span that only causality justifies",
        ("flashinfer #4972", "flashinfer PR #4992"),
        on_kernel=b.kernel(mask=bidirectional_span),
        blind=b.unless(_span_too_short, "causal, no window, or no key beyond start + L + tile"),
        adapters=b.SINGLE_PASS,
        smallest=AttentionCase(requests=(Request(0, 24),), window_left=2, causal=False),
    ),
    Fault(
        "window-crashes-verify",
        FaultClass.WINDOW,
        "speculative verify with a window is refused: the metadata builder is given no prefix lengths",
        ("sglang #22679", "sglang PR #27469"),
        on_plan=b.refused_when(_windowed_verify, EmulatedCudaError("prefix_lens is None in the window metadata")),
        blind=b.unless(_windowed_verify, "not verify with a window"),
        smallest=TINY.replace(requests=(Request(4, 3),), mode=Mode.TARGET_VERIFY),
    ),
    Fault(
        "window-pages-untranslated",
        FaultClass.WINDOW,
        "window layers, several rows: page numbers are those of another pool",
        ("sglang PR #24617",),
        on_kernel=b.kernel(page_lookup=_untranslated),
        blind=b.first_of(b.has_window, b.several_rows),
        adapters=b.SINGLE_PASS,
        smallest=TINY,
    ),
    Fault(
        "window-page-taken-for-token",
        FaultClass.WINDOW,
        "window layers: a page number is translated as if it were a token slot",
        ("sglang PR #16267",),
        on_kernel=b.kernel(page_lookup=_page_as_token),
        blind=b.first_of(b.has_window, b.pages_of_several),
        adapters=b.SINGLE_PASS,
        smallest=TINY,
    ),
    Fault(
        "window-hangs-fp8-past-tile",
        FaultClass.WINDOW,
        "fp8 with a window never returns once a sequence is longer than a tile",
        ("flashinfer #3578", "flashinfer PR #3682"),
        on_plan=b.refused_when(_fp8_window_past_tile, EmulatedHang("pipeline stages are never released")),
        blind=b.unless(_fp8_window_past_tile, "no fp8 cache with a window and more than 256 keys"),
        smallest=TINY.replace(requests=(Request(256, 1),), kv_dtype="float8_e4m3fn"),
    ),
    Fault(
        "window-below-tile-hangs",
        FaultClass.WINDOW,
        "a window smaller than a kv tile never returns when there are several tiles",
        ("flashinfer PR #673",),
        on_plan=b.refused_when(_window_below_tile, EmulatedHang("loop bound below zero in the window branch")),
        blind=b.unless(_window_below_tile, "no window below a tile with more than two tiles of keys"),
        smallest=TINY.replace(requests=(Request(128, 1),)),
    ),
    Fault(
        "window-skipped-keys-multiplied",
        FaultClass.GARBAGE_SLOTS,
        "keys left of the window have weight 0 but their recycled V is loaded: 0 * NaN",
        ("vllm PR #30887", "vllm PR #47574", "vllm PR #53628"),
        on_kernel=b.kernel(key_range=from_tile_start, slot=_skipped_tile),
        blind=b.first_of(
            b.unless(lambda case: case.poison != "zero", "unused slots are zeroed"),
            b.unless(_tile_reaches_left, "no window starts inside a tile"),
        ),
        adapters=b.SINGLE_PASS,
        smallest=TINY,
    ),
)
