"""FlashAttention paths over the paged cache: `flash-attn-4`, `flash-attn-3`, `flash-attn-2`.

One call for every mode: the new rows are written to the cache first, then the kernel reads
seqused_k = P + E keys of each request. Under a CUDA graph the metadata live in static buffers of a
graph captured for another batch. The library is handed in (`FlashAttentionLibrary`), real or emulated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from cases.batch import AttentionBatch, build_batch
from cases.pools import scatter
from cases.schema import AttentionCase, Execution, KvLayout, Mode, Poison
from harness.adapters.capabilities import Capabilities, Rule
from harness.adapters.flash_attention_plans import (
    FlashAttentionPlan,
    capture_metadata,
    plan_capture,
    plan_flash_attention,
)
from harness.adapters.protocol import PROTOCOL_VERSION, AttentionOutput, EmptyRow, LseBase

LONGEST_SMALL_EXTEND = 256  # rows: more than one query tile of every configuration


@dataclass(frozen=True, slots=True)
class VarlenCall:
    """One paged varlen call, whatever the library calls its arguments.

    q:            [rows, num_qo_heads, head_dim]
    k_pool, v_pool: [pages, page_size, num_kv_heads, head_dim], any strides with a dense last dimension
    cu_seqlens_q, seqused_k, page_table: int32, see FlashAttentionPlan
    num_splits:   None is the library's heuristic
    sinks:        float32 [num_qo_heads] or None
    out:          NaN-filled output to write into, [rows, num_qo_heads, head_dim_vo], or None where the
                  library takes none
    """

    q: Tensor
    k_pool: Tensor
    v_pool: Tensor
    cu_seqlens_q: Tensor
    seqused_k: Tensor
    page_table: Tensor
    max_seqlen_q: int
    max_seqlen_k: int
    softmax_scale: float
    causal: bool
    window_size: tuple[int, int]
    softcap: float
    num_splits: int | None
    sinks: Tensor | None
    out: Tensor | None


class Graph(Protocol):
    """A captured call. `outputs` are its (out, lse), at fixed addresses, rewritten by each replay."""

    outputs: tuple[Tensor, Tensor]

    def replay(self) -> None: ...


@dataclass(frozen=True, slots=True)
class LibraryTraits:
    """What differs between builds of one FlashAttention generation."""

    page_size_multiple: int = 1
    sinks: bool = False
    splits: str = "any"  # "any": the count can be set; "one": only 1; "none": it cannot be set
    takes_out: bool = True
    max_sink_heads: int | None = None
    packages: tuple[str, ...] = ()


class FlashAttentionLibrary(Protocol):
    """The calls of a FlashAttention build that the adapters use."""

    version: str
    is_emulated: bool
    traits: LibraryTraits

    def varlen(self, call: VarlenCall) -> tuple[Tensor, Tensor]:
        """out [rows, heads, dim] (call.out where given) and natural lse fp32 [heads, rows]."""
        ...

    def graph(self, function: Callable[[], tuple[Tensor, Tensor]]) -> Graph:
        """Capture `function`. Host integers in it are frozen; tensors are read anew at each replay."""
        ...

    def copy_metadata(self, name: str, static: Tensor, live: Tensor) -> None:
        """static[...] = live: what is done before a replay."""
        ...


def _split_rule(traits: LibraryTraits) -> Rule:
    def rule(case: AttentionCase) -> str | None:
        splits = case.execution.num_splits
        if splits is None or traits.splits == "any" or (traits.splits == "one" and splits == 1):
            return None
        return "only a split-kv count of 1 is taken" if traits.splits == "one" else "the split-kv count cannot be set"

    return rule


def _sink_rule(traits: LibraryTraits) -> Rule:
    def rule(case: AttentionCase) -> str | None:
        limit = traits.max_sink_heads
        if case.sinks and limit is not None and case.num_qo_heads > limit:
            return f"sinks are taken for up to {limit} query heads"
        return None

    return rule


def _fa2_swap_rule(case: AttentionCase) -> str | None:
    """FA2's varlen_fwd with max_seqlen_q 1, grouped heads and no window swaps rows and groups, and takes
    the number of requests for the number of rows."""
    captured = case.execution.capture_requests or case.requests
    swaps = max(r.extend_len for r in captured) == 1 and case.window_left is None and case.group_size > 1
    if swaps and any(r.extend_len == 0 for r in (*case.requests, *captured)):
        return "one-row batches with idle requests fail in FA2's group swap (flash-attn issues 1537, 1619)"
    return None


@dataclass(slots=True)
class _Static:
    """Buffers at fixed addresses that a graph reads and writes."""

    q: Tensor
    cu_seqlens_q: Tensor
    seqused_k: Tensor
    page_table: Tensor
    out: Tensor | None


class _FlashAttentionAdapter:
    """The declarations and the two ways to launch that the generations share."""

    protocol_version = PROTOCOL_VERSION
    lse_base = LseBase.NATURAL
    lse_includes_sink = True
    empty_row = EmptyRow.ZERO_MINUS_INF
    poison = Poison.FINITE  # a whole tile of V is loaded; its unused rows meet probability 0

    name: str
    capabilities: Capabilities
    devices: tuple[str, ...]
    rules: tuple[Rule, ...] = ()

    def __init__(self, library: FlashAttentionLibrary) -> None:
        self.library = library
        traits = library.traits
        self.packages = traits.packages
        self.capabilities = Capabilities(
            modes=tuple(Mode),
            bidirectional=True,
            sinks=traits.sinks,
            graph=True,
            num_splits=True,
            page_size_multiple=traits.page_size_multiple,
            kv_layouts=(KvLayout.NHD, KvLayout.HND),
            rules=(_split_rule(traits), _sink_rule(traits), *self.rules),
        )
        self.devices = ("cpu",) if library.is_emulated else ("cuda",)
        if library.is_emulated:
            self.name = f"{type(self).name}@emulated"

    def plan(self, batch: AttentionBatch) -> FlashAttentionPlan:
        return plan_flash_attention(batch)

    def run(self, plan: FlashAttentionPlan, batch: AttentionBatch) -> AttentionOutput:
        if plan.append_slots is not None:
            scatter(batch.k_pool, plan.append_slots, batch.k_new, batch.case.kv_layout)
            scatter(batch.v_pool, plan.append_slots, batch.v_new, batch.case.kv_layout)
        out, lse = self._replay(plan, batch) if batch.case.execution.uses_graph else self._eager(plan, batch)
        return AttentionOutput(out, lse.transpose(0, 1).contiguous())

    def _eager(self, plan: FlashAttentionPlan, batch: AttentionBatch) -> tuple[Tensor, Tensor]:
        out = batch.empty_output() if self.library.traits.takes_out else None
        return self.library.varlen(
            _call(
                plan,
                batch,
                _Static(batch.q, plan.cu_seqlens_q, plan.seqused_k, plan.page_table, out),
                plan.max_seqlen_q,
                plan.max_seqlen_k,
            )
        )

    def _replay(self, plan: FlashAttentionPlan, batch: AttentionBatch) -> tuple[Tensor, Tensor]:
        """Capture for the other batch, copy the plan's live metadata over its buffers, replay."""
        case, capture = batch.case, plan_capture(batch)
        metadata = capture_metadata(capture, batch.paging.num_pages, batch.device)
        q = batch.q.new_zeros((capture.total_q, case.num_qo_heads, case.head_dim_qk))
        shape = (capture.total_q, case.num_qo_heads, case.head_dim_vo)
        static = _Static(q, *metadata, q.new_full(shape, torch.nan) if self.library.traits.takes_out else None)
        call = _call(plan, batch, static, capture.max_seqlen_q, capture.columns * case.page_size)
        graph = self.library.graph(lambda: self.library.varlen(call))

        width = plan.page_table.shape[1]
        if width > capture.columns:
            raise ValueError(f"the plan's page table has {width} columns, the captured graph's {capture.columns}.")
        table = torch.zeros_like(static.page_table)  # page 0 is nobody's: what an unset entry reads
        table[:, :width] = plan.page_table
        live_q = torch.zeros_like(static.q)
        live_q[: case.total_q] = batch.q
        for name, buffer, live in (
            ("q", static.q, live_q),
            ("cu_seqlens_q", static.cu_seqlens_q, plan.cu_seqlens_q),
            ("seqused_k", static.seqused_k, plan.seqused_k),
            ("page_table", static.page_table, table),
        ):
            self.library.copy_metadata(name, buffer, live)
        out, lse = graph.outputs
        out.fill_(torch.nan)
        lse.fill_(torch.nan)
        graph.replay()
        return out[: case.total_q].clone(), lse[:, : case.total_q].clone()


def _call(
    plan: FlashAttentionPlan, batch: AttentionBatch, buffers: _Static, max_seqlen_q: int, max_seqlen_k: int
) -> VarlenCall:
    return VarlenCall(
        q=buffers.q,
        k_pool=_by_token(batch.k_pool, batch.case.kv_layout),
        v_pool=_by_token(batch.v_pool, batch.case.kv_layout),
        cu_seqlens_q=buffers.cu_seqlens_q,
        seqused_k=buffers.seqused_k,
        page_table=buffers.page_table,
        max_seqlen_q=max_seqlen_q,
        max_seqlen_k=max_seqlen_k,
        softmax_scale=plan.softmax_scale,
        causal=plan.causal,
        window_size=plan.window_size,
        softcap=plan.softcap,
        num_splits=plan.num_splits,
        sinks=plan.sinks,
        out=buffers.out,
    )


def _by_token(pool: Tensor, layout: KvLayout) -> Tensor:
    """[pages, page_size, heads, dim]; an HND cache is a strided view, as vLLM hands it over."""
    return pool if layout is KvLayout.NHD else pool.transpose(1, 2)


class FlashAttention4(_FlashAttentionAdapter):
    name = "flash-attn-4"

    def __init__(self, library: FlashAttentionLibrary) -> None:
        super().__init__(library)
        self._prepared: set[AttentionCase] = set()

    def prepare(self, case: AttentionCase) -> None:
        """Compile what `case` needs, a few seconds a configuration, on a batch of one small request.

        The library compiles apart whether one query tile covers the longest extend.
        """
        small = case.replace(
            requests=((2, min(case.max_extend_len, LONGEST_SMALL_EXTEND)),),
            pool_pages=None,
            mode=Mode.EXTEND,
            execution=Execution(),
            recipe="normal",
            seed=0,
        )
        if self.library.is_emulated or small in self._prepared or self.capabilities.unsupported(case) is not None:
            return
        batch = build_batch(small, self.devices[0])
        self.run(self.plan(batch), batch)
        self._prepared.add(small)


class FlashAttention3(_FlashAttentionAdapter):
    name = "flash-attn-3"


class FlashAttention2(_FlashAttentionAdapter):
    name = "flash-attn-2"
    lse_includes_sink = False
    empty_row = EmptyRow.ZERO_PLUS_INF
    rules = (_fa2_swap_rule,)
