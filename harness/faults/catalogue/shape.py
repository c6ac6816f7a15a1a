"""Shape corners: page sizes, head_dims and head groups that a kernel was not written for."""

from __future__ import annotations

import torch
from torch import Tensor

from cases.schema import AttentionCase, Execution, Mode, Request
from harness.emulation.hooks import EmulatedCudaError, Launch, RequestCall, Tile
from harness.faults.catalogue import building as b
from harness.faults.protocol import Fault, FaultClass

PAGE_LIMIT = 128
HEADS_PER_CTA = 8
DIM_STEP = 64
ROW_WAVE = 16  # page pointers that a loader fetches at a time
MERGE_THREADS = 1024
VECTOR = 8  # elements that one thread of merge_state handles

PAIR = AttentionCase(requests=(Request(5, 2),), page_size=4)


def upper_half_as_lower(request: RequestCall, operand: str, positions: Tensor, slots: Tensor) -> Tensor:
    """Offsets in a page wrap at 128."""
    del operand, positions
    size = request.launch.page_size or 1
    return slots if size <= PAGE_LIMIT else slots // size * size + slots % size % PAGE_LIMIT


def offset_dropped(request: RequestCall, operand: str, positions: Tensor, slots: Tensor) -> Tensor:
    del operand, positions
    size = request.launch.page_size or 1
    return slots // size * size if b.is_paged(request.launch) else slots


def pointers_of_wave_before(request: RequestCall, operand: str, positions: Tensor, slots: Tensor) -> Tensor:
    """The last, partial wave of rows keeps the page pointers of the wave before."""
    del operand
    size, end = request.launch.page_size, request.kv_len
    if not b.is_paged(request.launch) or size is None or end % ROW_WAVE == 0 or end < ROW_WAVE or slots.numel() == 0:
        return slots
    first, base = end // ROW_WAVE * ROW_WAVE, int(positions[0])
    before = (positions - ROW_WAVE - base).clamp(min=0, max=slots.numel() - 1)
    stale = slots[before] // size * size + positions % size
    return torch.where(positions >= first, stale, slots)


def _wave_crosses_page(case: AttentionCase) -> bool:
    """True if some key of a last, partial wave lies in another page than the pointer that it is read with."""
    for request in b.active(case):
        end, size = request.kv_len, case.page_size
        base = 0 if case.window_left is None else max(0, request.prefix_len - case.window_left)
        late = range(max(end // ROW_WAVE * ROW_WAVE, base), end)
        if end >= ROW_WAVE and any(max(p - ROW_WAVE, base) // size != p // size for p in late):
            return True
    return False


def truncated_dim(request: RequestCall, operand: str, rows: Tensor) -> Tensor:
    del request, operand
    kept = rows.shape[-1] // DIM_STEP * DIM_STEP
    if kept in (0, rows.shape[-1]):
        return rows
    return torch.cat([rows[..., :kept], torch.zeros_like(rows[..., kept:])], -1)


def rounded_group(tile: Tile, visible: Tensor) -> Tensor:
    """Packed row r = token * group + head is taken apart with the group rounded to a power of two."""
    launch = tile.request.launch
    group = launch.group_size
    rounded = 1 << (group - 1).bit_length()
    if rounded == group or launch.window[1] != 0:
        return visible
    rows = torch.arange(tile.request.qo_len, device=visible.device)
    heads = torch.arange(group, device=visible.device)
    token = (rows[None, :] * group + heads[:, None]) // rounded
    last = tile.query_positions[0] + token
    return visible & (tile.positions <= last[:, :, None])


def _odd_group(case: AttentionCase) -> bool:
    return case.group_size & (case.group_size - 1) != 0


def heads_past_tile(launch: Launch, values: Tensor) -> Tensor:
    if launch.group_size <= HEADS_PER_CTA:
        return values
    grouped = values.clone().view(values.shape[0], launch.num_kv_heads, launch.group_size, -1)
    grouped[:, :, HEADS_PER_CTA:] = 0.0
    return grouped.view(values.shape)


def next_heads_sink(request: RequestCall, sinks: Tensor, row_max: Tensor, term: Tensor) -> Tensor:
    """Pairs of heads share an index that is clamped too early."""
    if request.launch.group_size % 8 == 0:
        return term
    shifted = sinks.flatten().roll(-1).view_as(sinks)
    return torch.exp(shifted - row_max)


def neighbours_sum(tile: Tile, total: Tensor) -> Tensor:
    """The row sum is reduced over one lane too many: the row before counts too."""
    del tile
    return total + total.roll(1, -2) if total.shape[-2] > 1 else total


def _larger_capture_of_one(case: AttentionCase) -> bool:
    captured = case.execution.capture_requests
    return captured is not None and case.num_requests == 1 and captured[0].extend_len > case.max_extend_len


def _too_many_merge_threads(case: AttentionCase) -> bool:
    threads = case.num_qo_heads * case.head_dim_vo // VECTOR
    return threads > MERGE_THREADS and any(r.prefix_len for r in b.active(case))


def _odd_decode(case: AttentionCase) -> bool:
    return _odd_group(case) and case.max_extend_len == 1


FAULTS: tuple[Fault, ...] = (
    Fault(
        "page-offset-wraps-at-128",
        FaultClass.SHAPE,
        "pages larger than 128: the upper part is read from the lower",
        ("flashinfer #4347",),
        on_kernel=b.kernel(slot=upper_half_as_lower),
        blind=b.unless(
            lambda case: case.page_size > PAGE_LIMIT and any(r.kv_len > PAGE_LIMIT for r in b.active(case)),
            "no key lies past slot 128 of a page",
        ),
        adapters=b.SINGLE_PASS,
        smallest=PAIR.replace(requests=((129, 1),), page_size=256),
    ),
    Fault(
        "page-offset-dropped",
        FaultClass.SHAPE,
        "pages of more than one slot: every key is read from its page's first slot",
        ("flashinfer PR #810",),
        on_kernel=b.kernel(slot=offset_dropped),
        blind=b.pages_of_several,
        adapters=b.SINGLE_PASS,
        smallest=PAIR,
    ),
    Fault(
        "last-page-pointers-stale",
        FaultClass.SHAPE,
        "the last, partial wave of 16 rows keeps the page pointers of the wave before",
        ("flash-attn PR #2745",),
        on_kernel=b.kernel(slot=pointers_of_wave_before),
        blind=b.unless(_wave_crosses_page, "no partial wave of 16 keys lies in another page than the wave before"),
        adapters=b.SINGLE_PASS,
        smallest=PAIR.replace(requests=((16, 2),)),
    ),
    Fault(
        "head-dim-truncated-to-64s",
        FaultClass.SHAPE,
        "a head_dim that is no multiple of 64 is cut to one",
        ("flashinfer #4299",),
        on_kernel=b.kernel(load=truncated_dim),
        blind=b.unless(
            lambda case: any(d > DIM_STEP and d % DIM_STEP for d in (case.head_dim_qk, case.head_dim_vo)),
            "head_dim is a multiple of 64 (or below it)",
        ),
        adapters=b.SINGLE_PASS,
        smallest=PAIR.replace(head_dim_qk=72, head_dim_vo=72),
    ),
    Fault(
        "group-rounded-to-power-of-two",
        FaultClass.SHAPE,
        "rows of a head group are unpacked with the group rounded up: causal edges move",
        ("flashinfer PR #1148",),
        on_kernel=b.kernel(mask=rounded_group),
        blind=b.first_of(b.several_rows, b.unless(_odd_group, "the head group is a power of two")),
        smallest=PAIR.replace(num_qo_heads=7, num_kv_heads=1),
    ),
    Fault(
        "odd-group-decode-crashes",
        FaultClass.SHAPE,
        "decode with a head group of 7 is refused",
        ("flashinfer #2896",),
        on_plan=b.refused_when(_odd_decode, EmulatedCudaError("unsupported group_size")),
        blind=b.unless(_odd_decode, "not one row each, or the head group is a power of two"),
        smallest=PAIR.replace(requests=((5, 1),), mode=Mode.DECODE, num_qo_heads=7, num_kv_heads=1),
    ),
    Fault(
        "heads-past-8-of-a-group-skipped",
        FaultClass.SHAPE,
        "a head group larger than 8 is computed for its first 8 heads only",
        ("flashinfer PR #4095", "flashinfer PR #2380"),
        on_kernel=b.kernel(output=heads_past_tile),
        blind=b.unless(lambda case: case.group_size > HEADS_PER_CTA, "no head group is larger than 8"),
        adapters=b.SINGLE_PASS,
        smallest=PAIR.replace(num_qo_heads=16, num_kv_heads=1),
    ),
    Fault(
        "single-request-with-larger-maximum-crashes",
        FaultClass.SHAPE,
        "one request whose host maximum of rows exceeds its own is an illegal access",
        ("flashinfer PR #1912", "flashinfer #1898"),
        on_plan=b.refused_when(_larger_capture_of_one, EmulatedCudaError("an illegal memory access was encountered")),
        blind=b.unless(_larger_capture_of_one, "several requests, or no graph captured for more rows"),
        smallest=PAIR.replace(mode=Mode.DRAFT_EXTEND_V2, execution=Execution(capture_requests=(Request(5, 3),))),
    ),
    Fault(
        "sink-of-next-head",
        FaultClass.SHAPE,
        "head groups that are no multiple of 8 get the sink of the next head",
        ("flashinfer PR #4525",),
        on_kernel=b.kernel(sink=next_heads_sink),
        blind=b.first_of(
            b.with_sinks,
            b.unless(lambda case: case.group_size % 8 != 0 and case.num_qo_heads > 1, "one head, or groups of 8"),
        ),
        adapters=("flash-attn-4*",),
        smallest=PAIR.replace(sinks=True),
    ),
    Fault(
        "row-sum-includes-neighbour",
        FaultClass.SHAPE,
        "the softmax denominator of a row also holds that of the row before",
        ("flashinfer PR #3838",),
        on_kernel=b.kernel(row_sum=neighbours_sum),
        blind=b.unless(lambda case: case.max_extend_len > 1, "every request has one new row at most"),
        smallest=PAIR,
    ),
    Fault(
        "merge-of-many-heads-crashes",
        FaultClass.SHAPE,
        "merge_state is refused when heads * head_dim needs more than 1024 threads",
        ("sglang PR #23993",),
        on_plan=b.by_plan(
            merge=b.refused_when(_too_many_merge_threads, EmulatedCudaError("invalid configuration argument"))
        ),
        blind=b.unless(_too_many_merge_threads, "no prefix, or at most 8192 output elements per row"),
        adapters=b.FLASHINFER_MERGE,
        smallest=PAIR.replace(num_qo_heads=72, num_kv_heads=8, head_dim_qk=128, head_dim_vo=128),
    ),
)
