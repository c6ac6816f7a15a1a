"""Rows and requests without a key: what is written for them, and whom it hits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from cases.schema import AttentionCase, Mode, Request
from harness.emulation.hooks import EmulatedCudaError, Launch, RequestCall
from harness.faults.catalogue import building as b
from harness.faults.catalogue.building import EmulatedHang
from harness.faults.protocol import Fault, FaultClass

MASKED = AttentionCase(requests=(Request(3, 5),), window_left=2, page_size=4)


def nan_rows(request: RequestCall, out: Tensor, lse: Tensor, empty: Tensor) -> tuple[Tensor, Tensor]:
    del request
    return torch.where(empty[:, None, None], torch.nan, out), lse


def unwritten_rows(request: RequestCall, out: Tensor, lse: Tensor, empty: Tensor) -> tuple[Tensor, Tensor]:
    del request
    return torch.where(empty[:, None, None], torch.nan, out), torch.where(empty[:, None], torch.nan, lse)


def neighbours_lse(request: RequestCall, out: Tensor, lse: Tensor, empty: Tensor) -> tuple[Tensor, Tensor]:
    """Rows without a key keep the LSE of the request's first row."""
    del request
    return out, torch.where(empty[:, None], lse[:1], lse)


def previous_tile(request: RequestCall, out: Tensor, lse: Tensor, empty: Tensor) -> tuple[Tensor, Tensor]:
    """Rows without a key keep output and LSE of the request's first row."""
    del request
    return torch.where(empty[:, None, None], out[:1], out), torch.where(empty[:, None], lse[:1], lse)


def _idle_writes_on() -> dict[str, Callable[..., Any]]:
    """A request without rows writes a zero row where the next one starts."""
    starts: dict[int, int] = {}

    def row_offset(request: RequestCall, start: int) -> int:
        starts[request.index] = start
        return start

    def output(launch: Launch, values: Tensor) -> Tensor:
        del launch
        hit = [start for index, start in starts.items() if index and index - 1 not in starts]
        starts.clear()
        if not hit:
            return values
        values = values.clone()
        values[hit] = 0.0
        return values

    return {"row_offset": row_offset, "output": output}


def _idle_then_active(case: AttentionCase) -> bool:
    return any(not a.extend_len and c.extend_len for a, c in zip(case.requests, case.requests[1:], strict=False))


def _idle_in_one_row_batch(case: AttentionCase) -> bool:
    return case.max_extend_len == 1 and any(r.extend_len == 0 for r in case.requests)


def _no_key_at_all(case: AttentionCase) -> bool:
    return any(r.kv_len == 0 for r in case.requests)


FAULTS: tuple[Fault, ...] = (
    Fault(
        "empty-row-nan",
        FaultClass.EMPTY_ROWS,
        "a row without a key gives NaN with weight 0, which a merge does not remove",
        ("vllm PR #38436", "flashinfer PR #4975", "flash-attn #2562", "flash-attn PR #2568"),
        on_kernel=b.kernel(empty_row=nan_rows),
        blind=b.needs_masked_rows,
        adapters=b.FLASHINFER_MERGE,
        smallest=MASKED,
    ),
    Fault(
        "empty-row-unwritten",
        FaultClass.EMPTY_ROWS,
        "output and LSE of rows without a key stay as allocated",
        ("flashinfer PR #3779", "flashinfer PR #1533"),
        on_kernel=b.kernel(empty_row=unwritten_rows),
        blind=b.needs_masked_rows,
        adapters=b.FLASHINFER_MERGE,
        smallest=MASKED,
    ),
    Fault(
        "empty-row-keeps-neighbours-lse",
        FaultClass.EMPTY_ROWS,
        "a row without a key has a finite LSE, that of a neighbour: a merge gives it weight",
        ("flashinfer #3047", "flashinfer PR #3251", "sglang #22291", "sglang PR #22688", "sglang PR #10526"),
        on_kernel=b.kernel(empty_row=neighbours_lse),
        blind=b.needs_masked_rows,
        adapters=b.FLASHINFER_MERGE,
        smallest=MASKED,
    ),
    Fault(
        "empty-row-holds-previous-tile",
        FaultClass.EMPTY_ROWS,
        "a row without a key returns what the tile before left, output and LSE",
        ("flashinfer PR #353", "flashinfer PR #363", "flashinfer PR #440"),
        on_kernel=b.kernel(empty_row=previous_tile),
        blind=b.needs_masked_rows,
        adapters=b.FLASHINFER_MERGE,
        smallest=MASKED,
    ),
    Fault(
        "idle-request-overwrites-next-row",
        FaultClass.EMPTY_ROWS,
        "a request of length zero writes its row over the first row of the next request",
        ("flash-attn a3a257c7",),
        on_kernel=b.kernel_with_memory(_idle_writes_on),
        blind=b.unless(_idle_then_active, "no request without new rows stands before one with rows"),
        adapters=b.SINGLE_PASS,
        smallest=AttentionCase(requests=(Request(2, 0), Request(2, 1))),
    ),
    Fault(
        "idle-request-crashes-one-row-batch",
        FaultClass.EMPTY_ROWS,
        "one-row batches with an idle request are refused: q is reshaped by requests, not by rows",
        ("flash-attn #1537", "flash-attn #1619", "flash-attn PR #2515"),
        on_plan=b.refused_when(_idle_in_one_row_batch, EmulatedCudaError("shape is invalid for input")),
        blind=b.unless(_idle_in_one_row_batch, "some extend is longer than 1, or no request is idle"),
        smallest=AttentionCase(requests=(Request(2, 0), Request(2, 1)), mode=Mode.DECODE),
    ),
    Fault(
        "empty-kv-hangs",
        FaultClass.EMPTY_ROWS,
        "a request with no key at all is an empty work item that the scheduler waits for",
        ("flashinfer PR #1198", "flashinfer PR #868"),
        on_plan=b.refused_when(_no_key_at_all, EmulatedHang("an empty work item is never finished")),
        blind=b.unless(_no_key_at_all, "every request has a key"),
        smallest=AttentionCase(requests=(Request(0, 0), Request(2, 1))),
    ),
)
