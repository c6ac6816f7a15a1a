"""Where an emulated kernel can be made wrong.

`Hooks` is a value of callables, one per step of a kernel, all identities by default. A fault
replaces the ones it needs and hands the value to an emulated library:

    hooks = Hooks()
    hooks.window = lambda request, left, right: (left + 1, right)   # one key too wide
    library = EmulatedFlashInfer(hooks=hooks)

Every hook gets a context first and then what the right kernel would use; it returns what the
kernel shall use instead. Contexts are read-only:

- `Launch`: one kernel call (which kernel, heads, window, cap, scale, splits, host maxima).
- `RequestCall`: one request of a launch: its index, its row count, the kv length it was given.
- `Tile`: one block of keys of a request: the key positions, the split it belongs to.

Shapes: R rows of the request, K keys of the tile, Hq and Hk query and kv heads, G = Hq / Hk,
D head_dim. Scores and probabilities are laid out [Hk, G, R, K], in fp32 and in natural-log units.
A hook that returns slots outside the pool makes the emulated kernel raise EmulatedCudaError, as an
illegal memory access would.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor


class EmulatedCudaError(RuntimeError):
    """What would have been a CUDA error: an illegal memory access or a refused launch."""


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel call.

    kernel:     "flashinfer.ragged", "flashinfer.paged" or "flash_attention.varlen"
    backend:    "fa2", "fa3" or "fa4"
    window:     (left, right) as the element mask applies it; -1 is unlimited; causal is right = 0
    tile_start_left: left bound of the first kv tile only (FlashInfer fa2 with a window given at run
                and not at plan), or None
    query_tile: packed rows (rows times heads of a group) of a query tile, which share that first tile
    soft_cap:   0.0 is off
    num_splits: kv splits asked for; each split's partial state is fp32, then combined
    mask_fill:  score of a masked key, natural units (-inf, or FlashInfer's finite sentinel)
    empty_lse:  natural LSE of a row with no key, where mask_fill is -inf
    sum_rounded: the row sum adds the rounded probabilities (FlashInfer fa2) or the fp32 ones
    max_seqlen_q, max_seqlen_k: host maxima (None: not part of this kernel's interface)
    """

    kernel: str
    backend: str
    num_qo_heads: int
    num_kv_heads: int
    sm_scale: float
    soft_cap: float = 0.0
    window: tuple[int, int] = (-1, -1)
    tile_start_left: int | None = None
    query_tile: int = 128
    num_splits: int = 1
    mask_fill: float = -torch.inf
    empty_lse: float = -torch.inf
    sum_rounded: bool = False
    page_size: int | None = None
    max_seqlen_q: int | None = None
    max_seqlen_k: int | None = None

    @property
    def group_size(self) -> int:
        return self.num_qo_heads // self.num_kv_heads


@dataclass(frozen=True, slots=True)
class RequestCall:
    """One request of a launch. `kv_len` is the length that the call was given; `row_start` the
    request's first row in q."""

    launch: Launch
    index: int
    row_start: int
    qo_len: int
    kv_len: int


@dataclass(frozen=True, slots=True)
class Tile:
    """Keys `positions` (int64 [K], as the kernel counts them: 0 is the first key of the call) of one
    request, in split number `split`; `query_positions` int64 [R]."""

    request: RequestCall
    split: int
    positions: Tensor
    query_positions: Tensor


# -- per launch ----------------------------------------------------------------------------------
def plan_state(kernel: str, previous: Any, new: Any) -> Any:
    """The state a wrapper keeps between plan() and run(): a frozen PlanState of
    harness/emulation/flashinfer_state.py. `previous` is None at the first plan of a
    wrapper. Return `previous`, or a mix (dataclasses.replace), for a stale plan."""
    del kernel, previous
    return new


def mask_packing(launch: Launch, packed: Tensor, indptr: Tensor) -> tuple[Tensor, Tensor]:
    """FlashInfer's packed custom mask: uint8 [bytes], bit b of byte j is element 8j+b of its
    request; int64 [requests+1] first byte of each request."""
    del launch
    return packed, indptr


def head_map(launch: Launch, kv_heads: Tensor) -> Tensor:
    """int64 [Hq]: the kv head that each query head reads (h // G)."""
    del launch
    return kv_heads


def lse(launch: Launch, values: Tensor) -> Tensor:
    """The finished LSE of a call, before the library hands it out: fp32, FlashInfer log2 [tokens, Hq],
    FlashAttention natural [Hq, tokens]. Base, dtype, layout and stride faults act here."""
    del launch
    return values


def output(launch: Launch, values: Tensor) -> Tensor:
    """The finished output of a call: [tokens, Hq, D] in the output dtype (rows that no request wrote
    still hold what the buffer held before)."""
    del launch
    return values


def append(slots: Tensor) -> Tensor:
    """int64 [rows]: pool slots that append_paged_kv_cache writes (page * page_size + offset)."""
    return slots


def merge(where: str, weights: Tensor) -> Tensor:
    """Weights of partial states, fp32 [states, ..., rows, heads] summing to 1 over the first
    dimension. `where` is "merge_state" (2 states, [2, rows, Hq]) or "split" ([splits, Hk, G, R])."""
    del where
    return weights


def merged_lse(where: str, value: Tensor, parts: Tensor) -> Tensor:
    """The LSE of merged states; `parts` are those that went in, stacked first. Same `where` as merge;
    "merge_state" is in log2 units [rows, Hq], "split" in natural ones [Hk, G, R]."""
    del where, parts
    return value


def graph_copy(name: str, static: Tensor, live: Tensor) -> Tensor:
    """Metadata copied into a CUDA graph's static buffer before replay: returns the values to be
    written, of `static`'s shape. `name`: "cu_seqlens_q", "seqused_k", "page_table" or "q"; `static`
    still holds the values of the capture or of the replay before."""
    del name, static
    return live


# -- per request ---------------------------------------------------------------------------------
def window(request: RequestCall, left: int, right: int) -> tuple[int, int]:
    """Window of the element mask around a query's position; -1 is unlimited."""
    del request
    return left, right


def kv_len(request: RequestCall, length: int) -> int:
    """Keys that the call covers; queries are aligned to its end."""
    del request
    return length


def query_position(request: RequestCall, positions: Tensor) -> Tensor:
    """int64 [R] positions of the query rows among the keys (kv_len - qo_len + i)."""
    del request
    return positions


def key_range(request: RequestCall, low: int, high: int) -> tuple[int, int]:
    """Keys [low, high) that the kernel loads at all, for all rows together. The element mask still
    applies to each. Widen it for a mask that opens more, or to load past the end of the keys."""
    del request
    return low, high


def split(request: RequestCall, bounds: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Key ranges of the kv splits. Drop, duplicate or move one."""
    del request
    return bounds


def scale(request: RequestCall, value: float) -> float:
    """Softmax scale."""
    del request
    return value


def soft_cap(request: RequestCall, value: float) -> float:
    """Logits soft cap; 0.0 is off."""
    del request
    return value


def page_lookup(request: RequestCall, logical: Tensor, physical: Tensor) -> Tensor:
    """int64 [K]: physical page of each key's logical page (both given). Paged kernels only."""
    del request, logical
    return physical


def slot(request: RequestCall, operand: str, positions: Tensor, slots: Tensor) -> Tensor:
    """int64 [K]: pool slot (page * page_size + offset), or packed row of a ragged call, that each key
    position is read from. `operand` is "k" or "v"."""
    del request, operand, positions
    return slots


def load(request: RequestCall, operand: str, rows: Tensor) -> Tensor:
    """Rows as loaded, in the input dtype: "q" [R, Hq, D], "k" [K, Hk, D], "v" [K, Hk, Dv]."""
    del request, operand
    return rows


def row_offset(request: RequestCall, start: int) -> int:
    """First output row of the request."""
    del request
    return start


def sink(request: RequestCall, sinks: Tensor, row_max: Tensor, term: Tensor) -> Tensor:
    """What a sink adds to the softmax denominator relative to exp(row_max): `term` [Hk, G, R, 1] is
    exp(sink - row_max); `sinks` fp32 [Hk, G, 1, 1], natural, unscaled; `row_max` [Hk, G, R, 1]."""
    del request, sinks, row_max
    return term


def empty_row(request: RequestCall, out: Tensor, lse_rows: Tensor, empty: Tensor) -> tuple[Tensor, Tensor]:
    """Rows with no visible key: out fp32 [R, Hq, Dv] and natural lse [R, Hq] of the whole request as
    the library's contract has them, `empty` bool [R]. A row to be left unwritten: NaN."""
    del request, empty
    return out, lse_rows


# -- per tile ------------------------------------------------------------------------------------
def mask(tile: Tile, visible: Tensor) -> Tensor:
    """bool [R, K]; may return anything that broadcasts to [Hk, G, R, K]. A key outside `key_range` is
    never loaded, whatever this says."""
    del tile
    return visible


def score(tile: Tile, raw: Tensor, scores: Tensor) -> Tensor:
    """`raw` are plain dot products [Hk, G, R, K]; `scores` the same scaled, capped, and masked with
    launch.mask_fill. Return the masked scores."""
    del tile, raw
    return scores


def probability(tile: Tile, weights: Tensor) -> Tensor:
    """Unnormalised fp32 probabilities exp(score - running max) [Hk, G, R, K], before they are rounded
    to the input dtype."""
    del tile
    return weights


def row_sum(tile: Tile, total: Tensor) -> Tensor:
    """Sum [Hk, G, R, 1] of this tile's probabilities, before it is added to the running sum."""
    del tile
    return total


@dataclass(slots=True)
class Hooks:
    """One callable per point; see the functions of the same names for what each gets and returns."""

    plan_state: Callable[[str, Any, Any], Any] = plan_state
    mask_packing: Callable[[Launch, Tensor, Tensor], tuple[Tensor, Tensor]] = mask_packing
    head_map: Callable[[Launch, Tensor], Tensor] = head_map
    lse: Callable[[Launch, Tensor], Tensor] = lse
    output: Callable[[Launch, Tensor], Tensor] = output
    append: Callable[[Tensor], Tensor] = append
    merge: Callable[[str, Tensor], Tensor] = merge
    merged_lse: Callable[[str, Tensor, Tensor], Tensor] = merged_lse
    graph_copy: Callable[[str, Tensor, Tensor], Tensor] = graph_copy
    window: Callable[[RequestCall, int, int], tuple[int, int]] = window
    kv_len: Callable[[RequestCall, int], int] = kv_len
    query_position: Callable[[RequestCall, Tensor], Tensor] = query_position
    key_range: Callable[[RequestCall, int, int], tuple[int, int]] = key_range
    split: Callable[[RequestCall, list[tuple[int, int]]], list[tuple[int, int]]] = split
    scale: Callable[[RequestCall, float], float] = scale
    soft_cap: Callable[[RequestCall, float], float] = soft_cap
    page_lookup: Callable[[RequestCall, Tensor, Tensor], Tensor] = page_lookup
    slot: Callable[[RequestCall, str, Tensor, Tensor], Tensor] = slot
    load: Callable[[RequestCall, str, Tensor], Tensor] = load
    row_offset: Callable[[RequestCall, int], int] = row_offset
    sink: Callable[[RequestCall, Tensor, Tensor, Tensor], Tensor] = sink
    empty_row: Callable[[RequestCall, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]] = empty_row
    mask: Callable[[Tile, Tensor], Tensor] = mask
    score: Callable[[Tile, Tensor, Tensor], Tensor] = score
    probability: Callable[[Tile, Tensor], Tensor] = probability
    row_sum: Callable[[Tile, Tensor], Tensor] = row_sum
    state: dict[str, Any] = field(default_factory=dict)  # a fault's own memory between calls

    def overrides(self, name: str) -> bool:
        """True if a fault has replaced the hook `name`; kernels take a shorter way when not."""
        return getattr(self, name) is not cast(Any, globals()[name])
