"""Plan or graph staleness: metadata of another batch, another step or another call.

A stale value needs an earlier one. Where a case has a CUDA graph the capture gives it; elsewhere the
fault plans for a fixed warm-up call or for a neighbouring step, so that it is the same in every process.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from cases.batch import AttentionBatch
from cases.schema import AttentionCase, Execution, Mode, Request
from harness.emulation.hooks import Launch, RequestCall
from harness.faults.catalogue import building as b
from harness.faults.catalogue.lengths import true_lengths, with_lengths, with_pages
from harness.faults.protocol import Fault, FaultClass

WARM_UP_SCALE = 128**-0.5  # the call that an engine warms up with: head_dim 128
WARM_UP_MASK = 0b11101110  # one key in four closed

GRAPH = AttentionCase(
    requests=(Request(5, 2), Request(9, 1)),
    mode=Mode.DRAFT_EXTEND_V2,
    page_size=4,
    execution=Execution(capture_requests=(Request(2, 1), Request(1, 2))),
)
TWO = AttentionCase(requests=(Request(3, 2), Request(9, 1)), mode=Mode.DRAFT_EXTEND_V2, page_size=4)


def _keeps(buffer: str) -> Callable[..., Tensor]:
    """A graph buffer that is not written before replay."""
    return lambda name, static, live: static.clone() if name == buffer else live


def _lengths_differ(case: AttentionCase) -> bool:
    captured = case.execution.capture_requests or ()
    return any(new.extend_len and old.kv_len != new.kv_len for old, new in zip(captured, case.requests, strict=False))


def _extends_differ(case: AttentionCase) -> bool:
    captured = case.execution.capture_requests or ()
    return any(old.extend_len != new.extend_len for old, new in zip(captured, case.requests, strict=False))


def _outgrows_capture(case: AttentionCase) -> bool:
    captured = case.execution.capture_requests
    return captured is not None and any(r.kv_len > max(c.kv_len for c in captured) for r in b.active(case))


def _limit_of_capture() -> dict[str, Callable[..., Any]]:
    """Keys past the longest request of the capture are never loaded."""
    limit: dict[str, int] = {}

    def graph_copy(name: str, static: Tensor, live: Tensor) -> Tensor:
        if name == "seqused_k":
            limit["keys"] = int(static.max())
        return live

    def key_range(request: RequestCall, low: int, high: int) -> tuple[int, int]:
        del request
        return low, max(low, min(high, limit.get("keys", high)))

    return {"graph_copy": graph_copy, "key_range": key_range}


def _counter_not_reset() -> dict[str, Callable[..., Any]]:
    """From the second launch on, the tile counter starts where it stopped: request 0 is not computed."""
    seen: dict[str, Any] = {"launches": 0, "rows": (0, 0)}

    def row_offset(request: RequestCall, start: int) -> int:
        if request.index == 0 or seen["rows"] == (0, 0):
            seen["rows"] = (start, start + request.qo_len)
        return start

    def output(launch: Launch, values: Tensor) -> Tensor:
        del launch
        seen["launches"] += 1
        if seen["launches"] > 1:
            values = values.clone()
            first, end = seen["rows"]
            values[first:end] = torch.nan
        seen["rows"] = (0, 0)
        return values

    return {"row_offset": row_offset, "output": output}


def mask_of_warm_up(kernel: str, previous: Any, new: Any) -> Any:
    """A plan without a mask keeps the buffer of the plan before: `causal` is then not looked at."""
    del previous
    if kernel != "flashinfer.paged" or new.packed_mask is not None:
        return new
    starts = [0]
    for i, length in enumerate(new.kv_lens):
        starts.append(starts[-1] + -(-(new.qo_indptr[i + 1] - new.qo_indptr[i]) * length // 8))
    device = new.kv_indices.device
    packed = torch.full((starts[-1],), WARM_UP_MASK, dtype=torch.uint8, device=device)
    return dataclasses.replace(new, packed_mask=packed, mask_indptr=torch.tensor(starts, device=device))


def _scale_differs(case: AttentionCase) -> bool:
    return abs(case.scale - WARM_UP_SCALE) > 1e-3 * WARM_UP_SCALE


def last_request_reads_first(table: Tensor, used: list[int]) -> Tensor:
    del used
    table[-1] = table[0]
    return table


def _last_is_active(case: AttentionCase) -> bool:
    return case.num_requests > 1 and case.requests[-1].extend_len > 0


def _rolled(batch: AttentionBatch) -> list[int]:
    lens = true_lengths(batch)
    return lens[-1:] + lens[:-1]


def _neighbours_differ(case: AttentionCase) -> bool:
    lens = [r.kv_len for r in case.requests]
    return any(r.extend_len and lens[i] != lens[i - 1] for i, r in enumerate(case.requests))


FAULTS: tuple[Fault, ...] = (
    Fault(
        "graph-lengths-of-capture",
        FaultClass.PLAN_STALENESS,
        "kv lengths are not copied into the graph: those of the capture hold",
        ("sglang PR #26655", "sglang PR #30439"),
        on_kernel=b.kernel(graph_copy=_keeps("seqused_k")),
        blind=b.unless(_lengths_differ, "no graph, or one captured for the same lengths"),
        adapters=b.FLASH_ATTENTION,
        smallest=GRAPH,
    ),
    Fault(
        "graph-row-offsets-of-capture",
        FaultClass.PLAN_STALENESS,
        "cu_seqlens_q is read before it is written: rows are split among requests as in the step before",
        ("flashinfer PR #4199",),
        on_kernel=b.kernel(graph_copy=_keeps("cu_seqlens_q")),
        blind=b.unless(_extends_differ, "no graph, or one captured for the same new rows"),
        adapters=b.FLASH_ATTENTION,
        smallest=GRAPH,
    ),
    Fault(
        "graph-pages-of-capture",
        FaultClass.PLAN_STALENESS,
        "the page table is not copied into the graph: per-layer metadata stay frozen",
        ("vllm PR #28739",),
        on_kernel=b.kernel(graph_copy=_keeps("page_table")),
        blind=b.under_a_graph,
        adapters=b.FLASH_ATTENTION,
        smallest=GRAPH,
    ),
    Fault(
        "graph-keys-past-capture-dropped",
        FaultClass.SPLIT_MERGE,
        "keys beyond the longest request of the capture are not covered by any split",
        ("flash-attn PR #1455", "flash-attn PR #1192"),
        on_kernel=b.kernel_with_memory(_limit_of_capture),
        blind=b.unless(_outgrows_capture, "no graph, or no request is longer than all of the capture"),
        adapters=b.FLASH_ATTENTION,
        smallest=GRAPH,
    ),
    Fault(
        "lengths-of-next-step",
        FaultClass.PLAN_STALENESS,
        "kv lengths are overwritten by those of the next step while a copy is in flight: one key more each",
        ("vllm PR #23737",),
        on_plan=with_lengths(lambda batch: [n + 1 if n else 0 for n in true_lengths(batch)]),
        adapters=b.SINGLE_PASS,
        smallest=TWO,
    ),
    Fault(
        "lengths-of-neighbour",
        FaultClass.PLAN_STALENESS,
        "kv lengths belong to the batch before, in which each request stood one place earlier",
        ("sglang PR #30439",),
        on_plan=with_lengths(_rolled),
        blind=b.unless(_neighbours_differ, "neighbouring requests are equally long"),
        adapters=b.FLASH_ATTENTION,
        smallest=TWO,
    ),
    Fault(
        "last-request-of-plan-before",
        FaultClass.PLAN_STALENESS,
        "the last work items keep request ids of an earlier plan: the last request reads the first one's pages",
        ("flashinfer #4002", "flashinfer PR #5176", "sglang PR #31387", "sglang PR #34190"),
        on_plan=with_pages(last_request_reads_first),
        blind=b.unless(_last_is_active, "one request, or the last one has no new row"),
        adapters=b.SINGLE_PASS,
        smallest=TWO,
    ),
    Fault(
        "scheduler-counter-not-reset",
        FaultClass.PLAN_STALENESS,
        "scheduler metadata used a second time skip the first request (right in a fresh process)",
        ("flash-attn 1a58058a",),
        on_kernel=b.kernel_with_memory(_counter_not_reset),
        adapters=b.FLASH_ATTENTION,
        smallest=TWO,
    ),
    Fault(
        "mask-of-plan-before",
        FaultClass.PLAN_STALENESS,
        "a causal plan after one with a custom mask keeps the old mask",
        ("flashinfer PR #1028",),
        on_kernel=b.kernel(plan_state=mask_of_warm_up),
        adapters=("flashinfer-paged-fa2*",),
        smallest=TWO,
    ),
    Fault(
        "scale-of-first-call",
        FaultClass.PLAN_STALENESS,
        "the softmax scale of the first call (head_dim 128) is kept: it is no part of the cache key",
        ("flashinfer PR #4014",),
        on_plan=b.replanned(lambda case: {"sm_scale": WARM_UP_SCALE} if _scale_differs(case) else None),
        blind=b.unless(_scale_differs, "the scale is that of the first call"),
        smallest=TWO.replace(sm_scale=0.25),
    ),
)
