"""Window: FlashInfer fa2's estimate of the keys that a query tile spans, which only causality justifies.

flashinfer-python 0.6.18, include/flashinfer/attention: scheduler.cuh, PrefillSplitQOKVIndptr and
PrefillBinarySearchKVChunkSize, give every query tile of a request as many chunks as window_left + tile keys take;
prefill.cuh starts a tile's chunks at the first key of its first row's window. A tile of causal rows needs no
more keys; one of rows that see everything to their right does. Heads of a group share a tile ("packed" rows).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cases.schema import AttentionCase, Request
from harness.emulation.flashinfer_state import PlanState
from harness.emulation.hooks import RequestCall, Tile
from harness.faults.catalogue import building as b
from harness.faults.protocol import Fault, FaultClass

MULTIPROCESSORS = 132  # of an H100 or H200; where kernels are emulated on a GPU, that one's are taken


@dataclass(frozen=True, slots=True)
class Chunks:
    """The chunks of a plan.

    tile:   packed rows of a query tile
    keys:   keys of a chunk
    counts: chunks that each tile of a request gets
    """

    tile: int
    keys: int
    counts: tuple[int, ...]

    def reach(self, index: int, positions: Tensor, group: int, window_left: int) -> Tensor:
        """int64 [group, R]: the first key past the chunks of request `index`, for each head of a group and row.

        positions: int64 [R] of the request's new rows among its keys, in order
        """
        rows = torch.arange(positions.shape[0], device=positions.device)
        heads = torch.arange(group, device=positions.device)[:, None]
        first_row = (rows * group + heads) // self.tile * self.tile // group
        start = (positions[0] + first_row - window_left).clamp(min=0)
        return start + self.counts[index] * self.keys


def chunks_of(
    qo_lens: Sequence[int],
    kv_pages: Sequence[int],
    *,
    page_size: int,
    num_qo_heads: int,
    num_kv_heads: int,
    head_dim: int,
    window_left: int,
    multiprocessors: int = MULTIPROCESSORS,
) -> Chunks | None:
    """The chunks of a batch planned with a window (>= 0), or None where its kv is not split."""
    packed = [length * num_qo_heads // num_kv_heads for length in qo_lens]
    mean = sum(packed) // max(1, len(packed))
    tile = 128 if mean > 64 and head_dim < 256 else 64 if mean > 16 else 16
    span = _ceil_div(window_left + tile, page_size)
    effective = [max(1, min(span, pages)) for pages in kv_pages]
    low, longest = max(128 // page_size, 1), max(effective, default=1)
    high, most = longest, 2 * multiprocessors // num_kv_heads
    while low < high:
        middle = (low + high) // 2
        work = sum(
            _ceil_div(rows, tile) * _ceil_div(pages, middle) for rows, pages in zip(packed, effective, strict=True)
        )
        low, high = (middle + 1, high) if work > most else (low, middle)
    if low >= longest:
        return None
    return Chunks(tile, low * page_size, tuple(_ceil_div(pages, low) for pages in effective))


def multiprocessors_of(device: torch.device) -> int:
    """Those of the GPU that the emulation runs on, else MULTIPROCESSORS."""
    if device.type != "cuda":
        return MULTIPROCESSORS
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def _ceil_div(value: int, by: int) -> int:
    return -(-value // by)


# -- the fault -----------------------------------------------------------------------------------
def _causal_span_planned() -> dict[str, Any]:
    """Keys past the chunks that FlashInfer fa2 plans for a query tile, which are enough under causality only."""
    plans: dict[str, PlanState] = {}
    head_dim = 0

    def planned(kernel: str, previous: PlanState | None, new: PlanState) -> PlanState:
        del previous
        plans[kernel] = new
        return new

    def loaded(request: RequestCall, operand: str, rows: Tensor) -> Tensor:
        nonlocal head_dim
        del request, operand
        head_dim = rows.shape[-1]
        return rows

    def mask(tile: Tile, visible: Tensor) -> Tensor:
        launch, state = tile.request.launch, plans[tile.request.launch.kernel]
        left, right = launch.window
        if left < 0 or right >= 0 or not state.split_kv or launch.backend != "fa2":
            return visible
        chunks = chunks_of(
            [end - start for start, end in itertools.pairwise(state.qo_indptr)],
            [end - start for start, end in itertools.pairwise(state.kv_indptr)],
            page_size=state.page_size,
            num_qo_heads=state.num_qo_heads,
            num_kv_heads=state.num_kv_heads,
            head_dim=head_dim,
            window_left=left,
            multiprocessors=multiprocessors_of(visible.device),
        )
        if chunks is None:
            return visible
        reach = chunks.reach(tile.request.index, tile.query_positions, launch.group_size, left)
        return visible & (tile.positions < reach[..., None])

    return {"plan_state": planned, "load": loaded, "mask": mask}


def _chunks_too_short(case: AttentionCase) -> bool:
    """True if a row of the paged pass over all keys, or of the ragged one over the new rows, loses a key."""
    left = case.window_left
    if case.causal or left is None or case.execution.num_splits == 1:
        return False
    new = [r.extend_len for r in case.requests]
    for page_size, lens in ((case.page_size, [r.kv_len for r in case.requests]), (1, new)):
        chunks = chunks_of(
            new,
            [-(-length // page_size) for length in lens],
            page_size=page_size,
            num_qo_heads=case.num_qo_heads,
            num_kv_heads=case.num_kv_heads,
            head_dim=case.head_dim_vo,
            window_left=left,
        )
        for i, (rows, length) in enumerate(zip(new, lens, strict=True)):
            if chunks is not None and rows > 0:
                reach = chunks.reach(i, torch.arange(length - rows, length), case.group_size, left)
                if int(reach.min()) < length:
                    return True
    return False


FAULTS: tuple[Fault, ...] = (
    Fault(
        "bidirectional-window-chunks-short",
        FaultClass.WINDOW,
        "non-causal window: kv is cut into chunks for L + tile keys of a query tile, which causality alone justifies",
        ("flashinfer #4972", "flashinfer PR #4992"),
        on_kernel=b.kernel_with_memory(_causal_span_planned),
        blind=b.unless(_chunks_too_short, "causal, no window, one chunk, or the chunks reach every tile's last key"),
        adapters=("flashinfer-paged-fa2*", *b.FLASHINFER_MERGE),
        smallest=AttentionCase(
            requests=(Request(120, 137),), num_qo_heads=1, num_kv_heads=1, window_left=120, causal=False
        ),
    ),
)
