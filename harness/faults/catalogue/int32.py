"""Offsets that wrap: products computed in 32 bits.

The true limits (2^31 elements and more) need gigabytes. Each fault therefore comes twice: at its true
width, and at one that a small case reaches, so that the same wrap can be seen and named on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from cases.schema import AttentionCase, PageOrder, Request
from harness.emulation.hooks import EmulatedCudaError, Launch, RequestCall
from harness.faults.catalogue import building as b
from harness.faults.protocol import Fault, FaultClass

INT32 = 1 << 31
SMALL_POOL = 1 << 21  # elements
SMALL_MASK = 1 << 5  # bytes of packed mask
LONG_RAGGED = 1 << 17
LONG_CONTEXT = 1 << 22


def elements_per_slot(case: AttentionCase) -> int:
    return case.num_kv_heads * case.head_dim_qk


class _Wrap:
    """slot * stride modulo `limit`, in elements."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._stride = 1

    def load(self, request: RequestCall, operand: str, rows: Tensor) -> Tensor:
        """Learns the stride of a slot from q: kv heads times head_dim."""
        if operand == "q":
            self._stride = request.launch.num_kv_heads * rows.shape[-1]
        return rows

    def slot(self, request: RequestCall, operand: str, positions: Tensor, slots: Tensor) -> Tensor:
        del operand, positions
        return slots * self._stride % self.limit // self._stride if b.is_paged(request.launch) else slots


def wrapping(limit: int) -> Callable[..., None]:
    def make() -> dict[str, Callable[..., object]]:
        wrap = _Wrap(limit)
        return {"load": wrap.load, "slot": wrap.slot}

    return b.kernel_with_memory(make)


def _reaches(limit: int) -> b.Blind:
    def far(case: AttentionCase) -> bool:
        pages = case.pool_pages
        if pages is None or case.page_order is not PageOrder.FAR_END:
            return False
        owned = sum(-(-r.kv_len // case.page_size) for r in case.requests)
        return (pages - owned) * case.page_size * elements_per_slot(case) >= limit

    return b.unless(far, f"no request's pages lie {limit} elements into the pool")


def mask_wraps(limit: int) -> Callable[..., tuple[Tensor, Tensor]]:
    def wrap(launch: Launch, packed: Tensor, indptr: Tensor) -> tuple[Tensor, Tensor]:
        del launch
        return packed, indptr % limit

    return wrap


def _mask_bytes(case: AttentionCase) -> int:
    """Packed mask bytes before the last request of the prefix leg."""
    reach = case.window_left
    if reach is None:
        return 0
    sizes = [
        -(-r.extend_len * min(r.prefix_len, reach) // 8)
        for r in case.requests
        if r.extend_len and min(r.prefix_len, reach)
    ]
    return sum(sizes[:-1])


def _mask_reaches(limit: int) -> b.Blind:
    return b.first_of(
        b.needs_prefix_mask, b.unless(lambda case: _mask_bytes(case) >= limit, f"less than {limit} bytes of mask")
    )


def _row_elements(case: AttentionCase) -> bool:
    return case.total_q * case.num_qo_heads * case.head_dim_qk > INT32


FAR = AttentionCase(requests=(Request(5, 2),), page_order=PageOrder.FAR_END, pool_pages=2048)

FAULTS: tuple[Fault, ...] = (
    Fault(
        "page-offset-int32",
        FaultClass.INT32,
        "page * stride wraps at 2^31 elements",
        ("flashinfer #3130", "flashinfer PR #3136", "vllm PR #47671", "flash-attn #772"),
        on_kernel=wrapping(INT32),
        blind=_reaches(INT32),
        adapters=b.SINGLE_PASS,
        smallest=FAR.replace(pool_pages=1 << 20),
    ),
    Fault(
        "page-offset-wraps-early",
        FaultClass.INT32,
        "page * stride wraps at 2^21 elements: the same wrap at a size that a test holds",
        ("flashinfer #3130", "vllm PR #47671"),
        on_kernel=wrapping(SMALL_POOL),
        blind=_reaches(SMALL_POOL),
        adapters=b.SINGLE_PASS,
        smallest=FAR,
    ),
    Fault(
        "mask-offset-int32",
        FaultClass.INT32,
        "the byte offset of a request's packed mask wraps at 2^31",
        ("flashinfer PR #1290", "flashinfer #1271"),
        on_kernel=b.kernel(mask_packing=mask_wraps(INT32)),
        blind=_mask_reaches(INT32),
        adapters=b.FLASHINFER_MERGE,
    ),
    Fault(
        "mask-offset-wraps-early",
        FaultClass.INT32,
        "the byte offset of a request's packed mask wraps at 32: the same wrap at a size that a test holds",
        ("flashinfer PR #1290",),
        on_kernel=b.kernel(mask_packing=mask_wraps(SMALL_MASK)),
        blind=_mask_reaches(SMALL_MASK),
        adapters=b.FLASHINFER_MERGE,
        smallest=AttentionCase(requests=(Request(31, 20), Request(31, 20)), window_left=31),
    ),
    Fault(
        "long-ragged-kv-crashes",
        FaultClass.INT32,
        "a ragged kv of 128K tokens is refused: its numel stride turns negative",
        ("flashinfer PR #2134", "sglang #13775"),
        on_plan=b.refused_when(
            lambda case: case.total_kv >= LONG_RAGGED, EmulatedCudaError("failed to initialise the TMA descriptor")
        ),
        blind=b.unless(lambda case: case.total_kv >= LONG_RAGGED, "less than 128K keys in all"),
        smallest=AttentionCase(requests=(Request(LONG_RAGGED - 1, 1),)),
    ),
    Fault(
        "long-context-crashes",
        FaultClass.INT32,
        "a context of 4M keys is an illegal access: a byte size wraps",
        ("flash-attn PR #2662",),
        on_plan=b.refused_when(
            lambda case: case.max_kv_len >= LONG_CONTEXT, EmulatedCudaError("an illegal memory access was encountered")
        ),
        blind=b.unless(lambda case: case.max_kv_len >= LONG_CONTEXT, "no context of 4M keys"),
    ),
    Fault(
        "query-offset-int32-crashes",
        FaultClass.INT32,
        "row * heads * head_dim wraps at 2^31 elements of q: an illegal access",
        ("sglang #20389",),
        on_plan=b.refused_when(_row_elements, EmulatedCudaError("an illegal memory access was encountered")),
        blind=b.unless(_row_elements, "q has no more than 2^31 elements"),
    ),
)
