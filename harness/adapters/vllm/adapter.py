"""vLLM's attention backends as adapters: a metadata builder, the cache update, the forward.

| adapter                    | kernels                          | what is real without a GPU                       |
|----------------------------|----------------------------------|--------------------------------------------------|
| vllm-flash-attn            | vLLM's FlashAttention 3 (Hopper) | builder and layer; FlashAttention is emulated    |
| vllm-flash-attn@fa2        | vLLM's FlashAttention 2          | not driven                                       |
| vllm-flashinfer            | the installed FlashInfer         | builder and layer; the two wrappers are emulated |

What vLLM's runner passes (v1/worker/gpu_model_runner.py, 0.22): `seq_lens` counts the new tokens in every
mode; a speculative verification is an ordinary batch of 1 + k rows a request; a drafter's first pass builds
with `build_for_drafting` (v1/spec_decode/eagle.py), which turns ahead-of-time scheduling off.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import torch

from cases.batch import AttentionBatch
from cases.schema import AttentionCase, KvLayout, Mode, Poison
from harness.adapters.capabilities import Capabilities
from harness.adapters.protocol import PROTOCOL_VERSION, AttentionOutput, EmptyRow, LseBase
from harness.adapters.vllm import caches, graphs
from harness.adapters.vllm.order import Order, order_for
from harness.adapters.vllm.runtime import FLASH_ATTN, Emulations, Runtime, runtime
from harness.adapters.vllm.setup import Parts, Setup, make_parts, setup_for

KEPT_BUILDERS = 8  # kept between cases, each with its graph buffers, as a server keeps them
FLASHINFER_PAGES = (16, 32, 64)  # FlashInferBackend.get_supported_kernel_block_sizes


def no_split_count(case: AttentionCase) -> str | None:
    return None if case.execution.num_splits is None else "vLLM chooses the split-kv count itself"


def clean_workspace(case: AttentionCase) -> str | None:
    return None if case.execution.workspace == "clean" else "vLLM owns its workspace; it cannot be dirtied"


def sink_heads(case: AttentionCase) -> str | None:
    return "sinks are taken for up to 64 query heads" if case.sinks and case.num_qo_heads > 64 else None


def flashinfer_pages(case: AttentionCase) -> str | None:
    return None if case.page_size in FLASHINFER_PAGES else "vLLM gives FlashInfer pages of 16, 32 or 64 tokens alone"


def single_token_graph(case: AttentionCase) -> str | None:
    """FlashInferMetadataBuilder.get_cudagraph_support: UNIFORM_SINGLE_TOKEN_DECODE without TRT-LLM's kernels."""
    rows = {r.extend_len for r in (*(case.execution.capture_requests or ()), *case.requests)}
    if case.execution.uses_graph and rows != {1}:
        return "vLLM captures FlashInfer for batches of one new token a request alone (but on Blackwell)"
    return None


MODES = (Mode.EXTEND, Mode.DECODE, Mode.DRAFT_EXTEND_V2, Mode.TARGET_VERIFY)
FLASH_ATTENTION = Capabilities(
    modes=MODES,
    dtypes=("bfloat16", "float16"),
    sinks=True,
    graph=True,
    empty_extends=False,  # the scheduler's batches hold requests that have tokens
    page_size_multiple=16,  # FlashAttentionBackend.get_supported_kernel_block_sizes
    kv_layouts=(KvLayout.NHD, KvLayout.HND),
    rules=(no_split_count, clean_workspace, sink_heads),
)
FLASHINFER_CAPABILITIES = Capabilities(
    modes=MODES,
    dtypes=("bfloat16", "float16"),
    sinks=False,  # FlashInferBackend.supports_sink: on Blackwell alone
    graph=True,
    head_dims=(64, 128, 256),  # get_supported_head_sizes, less 512: harness/adapters/flashinfer.py does without it too
    empty_extends=False,
    kv_layouts=(KvLayout.NHD, KvLayout.HND),
    rules=(flashinfer_pages, no_split_count, clean_workspace, single_token_graph),
)


@dataclass(slots=True)
class VllmPlan:
    """vLLM's metadata for a batch, and the order of its requests; with a graph, the capture."""

    parts: Parts
    metadata: Any
    cache: Any
    order: Order
    captured: graphs.Captured | None


class VllmAdapter:
    """The members of harness/adapters/protocol.py for one of vLLM's backends."""

    protocol_version = PROTOCOL_VERSION
    lse_base = LseBase.NATURAL  # never returned: forward gives the output alone
    lse_includes_sink = True
    empty_row = EmptyRow.UNSPECIFIED
    poison = Poison.FINITE
    pads_page_0 = True  # the stand-in for the cache write puts rows of slot -1 there (runtime.py)

    def __init__(
        self,
        name: str,
        backend: str,
        emulations: Emulations | None,
        capabilities: Capabilities,
        *,
        flash_attn_version: int | None = None,
        packages: tuple[str, ...] = (),
        traits: dict[str, Any] | None = None,
    ) -> None:
        self.name = name
        self.capabilities = capabilities
        self.devices = ("cuda",) if emulations is None else ("cpu",)
        self.packages = ("vllm", *packages)
        for member, value in (traits or {}).items():  # how its kernels round (protocol.py, ADAPTER_DEFAULTS)
            setattr(self, member, value)
        self._backend = backend
        self._emulations = emulations
        self._version = flash_attn_version
        self._parts: OrderedDict[Setup, Parts] = OrderedDict()

    def plan(self, batch: AttentionBatch) -> VllmPlan:
        case, vllm = batch.case, self._runtime()
        setup = setup_for(batch, self._backend, self._version)
        with vllm.surroundings():
            parts = self._parts_of(setup)
            use_layout(setup)
            # bf16, as models/gpt_oss.py keeps them and FlashAttention 3 takes them
            parts.impl.sinks = None if batch.data.sinks is None else batch.data.sinks.to(torch.bfloat16)
            cache = caches.paired(batch) if self._backend == FLASH_ATTN else caches.interleaved(batch)
            order = order_for(case.requests, case.mode, parts.builder.reorder_batch_threshold, batch.device)
            if case.execution.uses_graph:
                captured = graphs.capture(setup, parts, cache, batch)
                batch.reset()  # capture wrote its padding rows; the batch's own slots are stale again
                metadata = graphs.load(parts, captured, batch, order)
                return VllmPlan(parts, metadata, cache, order, captured)
            metadata = graphs.build(parts.builder, case.mode, graphs.common_metadata(batch, order))
        return VllmPlan(parts, metadata, cache, order, None)

    def run(self, plan: VllmPlan, batch: AttentionBatch) -> AttentionOutput:
        order = plan.order
        with self._runtime().surroundings():
            use_layout(plan.parts.setup)
            if plan.captured is not None:
                plan.captured.out.fill_(torch.nan)  # what the replay does not write must not look right
                plan.captured.replay()
                return AttentionOutput(order.undone(plan.captured.out[: batch.case.total_q].clone()))
            out = batch.empty_output()
            q, k, v = (order.of_rows(rows) for rows in (batch.q, batch.k_new, batch.v_new))
            graphs.forward(plan.parts, plan.metadata, plan.cache, q, k, v, plan.metadata.slot_mapping, out)
        return AttentionOutput(order.undone(out))

    # -- inside --------------------------------------------------------------------------------
    def _runtime(self) -> Runtime:
        return runtime(self._emulations)

    def _parts_of(self, setup: Setup) -> Parts:
        if setup in self._parts:
            self._parts.move_to_end(setup)
            return self._parts[setup]
        while len(self._parts) >= KEPT_BUILDERS:
            self._parts.popitem(last=False)
        self._parts[setup] = make_parts(setup, self._runtime().backend(self._backend))
        return self._parts[setup]


def use_layout(setup: Setup) -> None:
    """VLLM_KV_CACHE_LAYOUT, which a server sets once; here it may change from case to case."""
    from vllm.v1.attention.backends.utils import set_kv_cache_layout

    set_kv_cache_layout(setup.kv_layout)
