"""vLLM's FlashAttention backend as an adapter: its metadata builder, its cache update, its forward.

| adapter                    | kernels                          | what is real without a GPU                    |
|----------------------------|----------------------------------|-----------------------------------------------|
| vllm-flash-attn            | vLLM's FlashAttention 3 (Hopper) | builder and layer; FlashAttention is emulated |
| vllm-flash-attn@fa2        | vLLM's FlashAttention 2          | not driven                                    |

What vLLM's runner passes (v1/worker/gpu_model_runner.py, 0.22): `seq_lens` counts the new tokens in every
mode; a speculative verification is an ordinary batch of 1 + k rows a request; a drafter's first pass builds
with `build_for_drafting` (v1/spec_decode/eagle.py), which turns ahead-of-time scheduling off.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cases.batch import AttentionBatch
from cases.schema import AttentionCase, KvLayout, Mode, Poison
from harness.adapters.capabilities import Capabilities
from harness.adapters.flash_attention import FlashAttentionLibrary
from harness.adapters.protocol import PROTOCOL_VERSION, AttentionOutput, EmptyRow, LseBase
from harness.adapters.vllm import graphs
from harness.adapters.vllm.runtime import Runtime, runtime
from harness.adapters.vllm.setup import Parts, Setup, make_parts, setup_for

KEPT_BUILDERS = 8  # kept between cases, each with its graph buffers, as a server keeps them


def no_split_count(case: AttentionCase) -> str | None:
    return None if case.execution.num_splits is None else "vLLM chooses the split-kv count itself"


def clean_workspace(case: AttentionCase) -> str | None:
    return None if case.execution.workspace == "clean" else "vLLM owns its workspace; it cannot be dirtied"


def sink_heads(case: AttentionCase) -> str | None:
    return "sinks are taken for up to 64 query heads" if case.sinks and case.num_qo_heads > 64 else None


CAPABILITIES = Capabilities(
    modes=(Mode.EXTEND, Mode.DECODE, Mode.DRAFT_EXTEND_V2, Mode.TARGET_VERIFY),
    dtypes=("bfloat16", "float16"),
    sinks=True,
    graph=True,
    empty_extends=False,  # the scheduler's batches hold requests that have tokens
    page_size_multiple=16,  # FlashAttentionBackend.get_supported_kernel_block_sizes
    kv_layouts=(KvLayout.NHD, KvLayout.HND),
    rules=(no_split_count, clean_workspace, sink_heads),
)


class PairedCache:
    """vLLM's kv_cache tensor [2, pages, page_size, heads, dim], of which backends take `unbind(0)` alone.

    The two halves are the batch's own pools, so nothing is copied.
    """

    def __init__(self, key_cache: Tensor, value_cache: Tensor) -> None:
        self._halves = (key_cache, value_cache)

    def unbind(self, dim: int) -> tuple[Tensor, Tensor]:
        if dim != 0:
            raise RuntimeError(f"kv_cache.unbind({dim}): the halves are along dimension 0")
        return self._halves


@dataclass(slots=True)
class VllmPlan:
    """vLLM's metadata for a batch; with a graph, the capture."""

    parts: Parts
    metadata: Any
    cache: PairedCache
    captured: graphs.Captured | None


class VllmFlashAttentionAdapter:
    """The members of harness/adapters/protocol.py for vLLM's FlashAttention backend."""

    protocol_version = PROTOCOL_VERSION
    lse_base = LseBase.NATURAL  # never returned: forward gives the output alone
    lse_includes_sink = True
    empty_row = EmptyRow.UNSPECIFIED
    poison = Poison.FINITE
    packages: tuple[str, ...] = ("vllm",)

    def __init__(
        self,
        name: str,
        emulated: Callable[[], FlashAttentionLibrary] | None,
        flash_attn_version: int | None = None,
        capabilities: Capabilities = CAPABILITIES,
    ) -> None:
        self.name = name
        self.capabilities = capabilities
        self.devices = ("cuda",) if emulated is None else ("cpu",)
        self._emulated = emulated
        self._version = flash_attn_version
        self._parts: OrderedDict[Setup, Parts] = OrderedDict()

    def plan(self, batch: AttentionBatch) -> VllmPlan:
        case, vllm = batch.case, self._runtime()
        setup = setup_for(batch, self._version)
        with vllm.surroundings():
            parts = self._parts_of(setup)
            # bf16, as models/gpt_oss.py keeps them and FlashAttention 3 takes them
            parts.impl.sinks = None if batch.data.sinks is None else batch.data.sinks.to(torch.bfloat16)
            cache = PairedCache(_by_token(batch.k_pool, case), _by_token(batch.v_pool, case))
            if case.execution.uses_graph:
                captured = graphs.capture(setup, parts, cache, batch)
                batch.reset()  # capture wrote its padding rows; the batch's own slots are stale again
                metadata = graphs.load(parts, captured, batch)
                return VllmPlan(parts, metadata, cache, captured)
            metadata = graphs.build(parts.builder, case.mode, graphs.common_metadata(batch))
        return VllmPlan(parts, metadata, cache, None)

    def run(self, plan: VllmPlan, batch: AttentionBatch) -> AttentionOutput:
        with self._runtime().surroundings():
            if plan.captured is not None:
                plan.captured.out.fill_(torch.nan)  # what the replay does not write must not look right
                plan.captured.replay()
                return AttentionOutput(plan.captured.out[: batch.case.total_q].clone())
            out = batch.empty_output()
            slots = plan.metadata.slot_mapping
            graphs.forward(plan.parts, plan.metadata, plan.cache, batch.q, batch.k_new, batch.v_new, slots, out)
        return AttentionOutput(out)

    # -- inside --------------------------------------------------------------------------------
    def _runtime(self) -> Runtime:
        return runtime(self._emulated)

    def _parts_of(self, setup: Setup) -> Parts:
        if setup in self._parts:
            self._parts.move_to_end(setup)
            return self._parts[setup]
        while len(self._parts) >= KEPT_BUILDERS:
            self._parts.popitem(last=False)
        self._parts[setup] = make_parts(setup)
        return self._parts[setup]


def _by_token(pool: Tensor, case: AttentionCase) -> Tensor:
    """[pages, page_size, heads, dim]; an HND cache is a strided view (get_kv_cache_stride_order)."""
    return pool if case.kv_layout is KvLayout.NHD else pool.transpose(1, 2)
