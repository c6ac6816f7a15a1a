"""SGLang's attention backends as adapters: init_forward_metadata, then RadixAttention on a ForwardBatch.

| adapter                       | backend        | what is real without a GPU                            |
|-------------------------------|----------------|-------------------------------------------------------|
| sglang-flashinfer             | flashinfer     | planning; FlashInfer's wrappers are emulated          |
| sglang-flashinfer-paged       | flashinfer     | the same with SGLANG_FLASHINFER_USE_PAGED=1           |
| sglang-fa3                    | fa3            | planning; FlashAttention is emulated                  |
| sglang-fa3@prefix-seq-lens    | fa3            | the same                                              |
| sglang-triton                 | triton         | not driven (its kernels need a GPU)                   |
| sglang-torch-native           | torch_native   | everything                                            |
| sglang-flex                   | flex_attention | everything                                            |

A backend that ignores what a layer asks for (a window, a soft cap) without refusing it is driven all the
same: silently wrong is what this harness is for. What a backend refuses, or what no SGLang scheduler
sends, is UNSUPPORTED.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cases.batch import AttentionBatch, build_batch
from cases.schema import AttentionCase, Mode, Poison
from harness.adapters.capabilities import Capabilities, Rule
from harness.adapters.protocol import PROTOCOL_VERSION, AttentionOutput, EmptyRow, LseBase
from harness.adapters.sglang import graphs
from harness.adapters.sglang.forward import (
    fill_request_pool,
    forward_batch,
    lengths,
    positions_of,
    put_pool,
)
from harness.adapters.sglang.runtime import KernelSource, Runtime, runtime
from harness.adapters.sglang.setup import Setup, make_layer, setup_for

KEPT_BACKENDS = 8  # backends kept between cases, each with its pools and graph buffers
SPECULATIVE = (Mode.DRAFT_EXTEND_V2, Mode.TARGET_VERIFY)


@dataclass(slots=True)
class Server:
    """What a running server would hold: the runner, its pools, its backend."""

    setup: Setup
    runner: Any
    backend: Any
    graph_ready: bool = False


@dataclass(slots=True)
class SglangPlan:
    """A ForwardBatch whose metadata the backend holds; with a graph, the capture."""

    server: Server
    layer: Any
    forward_batch: Any
    captured: graphs.Captured | None


def equal_extends(case: AttentionCase) -> str | None:
    """speculative_num_draft_tokens is one number of the server."""
    if case.mode is Mode.TARGET_VERIFY and len({r.extend_len for r in case.requests}) > 1:
        return "SGLang verifies the same number of draft tokens for every request"
    return None


def captured_as_production(case: AttentionCase) -> str | None:
    """SGLang captures speculative graphs with speculative_num_draft_tokens rows for every request."""
    captured = case.execution.capture_requests
    if captured is None:
        return None
    if case.mode is Mode.EXTEND:
        return "SGLang captures no graph of EXTEND attention"
    if len({r.extend_len for r in captured}) > 1:
        return "SGLang captures the same number of rows for every request"
    return None


def equal_replay(case: AttentionCase) -> str | None:
    """Backends that derive qo_indptr from speculative_num_draft_tokens alone."""
    captured = case.execution.capture_requests
    if captured is not None and {r.extend_len for r in case.requests} != {r.extend_len for r in captured}:
        return "this backend's graph replays the row counts that it was captured for, as SGLang's scheduler sends them"
    return None


def clean_workspace(case: AttentionCase) -> str | None:
    return None if case.execution.workspace == "clean" else "SGLang owns its workspace; it cannot be dirtied"


class SglangAdapter:
    """The members of harness/adapters/protocol.py for one backend of SGLang."""

    protocol_version = PROTOCOL_VERSION
    lse_base = LseBase.NATURAL  # never returned: RadixAttention gives the output alone
    lse_includes_sink = False
    empty_row = EmptyRow.UNSPECIFIED
    poison = Poison.FINITE  # SGLang promises nothing about what stale slots hold
    pads_page_0 = True  # a graph's padding rows are written to slot 0, SGLang's padding slot (graphs.py)
    packages: tuple[str, ...] = ("sglang",)
    devices: tuple[str, ...] = ("cuda", "cpu")

    def __init__(
        self,
        name: str,
        backend: str,
        source: KernelSource,
        capabilities: Capabilities,
        *,
        merge_legs: int = 1,
        prefix_seq_lens: bool = False,
        environment: dict[str, str] | None = None,
        packages: tuple[str, ...] = (),
        traits: dict[str, Any] | None = None,
    ) -> None:
        self.name = name
        self.capabilities = capabilities
        self.merge_legs = merge_legs
        self.packages = ("sglang", *packages)
        for member, value in (traits or {}).items():  # how its kernels round (protocol.py, ADAPTER_DEFAULTS)
            setattr(self, member, value)
        self.devices = ("cpu",) if source.emulated else ("cuda",)
        self._backend = backend
        self._source = source
        self._prefix_seq_lens = prefix_seq_lens
        self._environment = environment or {}
        self._servers: OrderedDict[Setup, Server] = OrderedDict()
        self._prepared: set[tuple[Any, ...]] = set()

    # -- protocol ------------------------------------------------------------------------------
    def prepare(self, case: AttentionCase) -> None:
        """Import SGLang, and run the first case of a kind once: that is where kernels are compiled."""
        kind = (
            case.dtype,
            case.head_dim_qk,
            case.group_size,
            case.mode,
            case.window_left is None,
            case.logits_soft_cap is None,
            case.sinks,
            case.page_size,
        )
        self._runtime()
        if kind in self._prepared:
            return
        device = torch.device("cpu") if self._source.emulated else torch.device("cuda", 0)
        batch = build_batch(case, device)
        self.run(self.plan(batch), batch)
        self._prepared.add(kind)

    def plan(self, batch: AttentionBatch) -> SglangPlan:
        case, sglang = batch.case, self._runtime()
        setup = setup_for(case, self._backend, batch.device, batch.paging.num_pages, batch.page_table.shape[1])
        server = self._server(setup)
        put_pool(server.runner.token_to_kv_pool, batch)
        fill_request_pool(server.runner.req_to_token_pool.req_to_token, batch)
        layer = make_layer(setup, case.scale)
        with sglang.at_work(self._backend, server.backend):
            if case.execution.uses_graph:
                return self._plan_graph(sglang, server, layer, batch)
            sizes = lengths(case.requests, case.mode, prefix_only=self._prefix_seq_lens)
            made = forward_batch(
                setup,
                case.mode,
                sizes,
                batch.new_slots,
                positions=positions_of(sizes),
                spec_info=graphs.speculative_input(sglang, setup, case.mode, sizes, batch.device),
            )
            sglang.compat.bind(made, server.runner, server.backend)
            server.backend.init_forward_metadata(made)
        return SglangPlan(server, layer, made, None)

    def run(self, plan: SglangPlan, batch: AttentionBatch) -> AttentionOutput:
        sglang, case = self._runtime(), batch.case
        with sglang.at_work(self._backend, plan.server.backend):
            if plan.captured is not None:
                plan.captured.replay()
                out = plan.captured.out[: case.total_q]
            else:
                out = self._forward(plan.layer, plan.forward_batch, batch.q, batch.k_new, batch.v_new, batch.data.sinks)
        return AttentionOutput(out.view(case.total_q, case.num_qo_heads, case.head_dim_vo))

    # -- inside --------------------------------------------------------------------------------
    def _runtime(self) -> Runtime:
        return runtime(self._source)

    def _server(self, setup: Setup) -> Server:
        """The backend for a Setup: kept, as a server keeps it, so that state left behind by a case shows."""
        if setup in self._servers:
            self._servers.move_to_end(setup)
            return self._servers[setup]
        while len(self._servers) >= KEPT_BACKENDS:
            self._servers.popitem(last=False)
        sglang = self._runtime()
        os.environ.update(self._environment)
        try:
            with sglang.at_work(self._backend):
                runner = sglang.compat.make_runner(setup)
                backend = sglang.make_backend(self._backend, runner)
        finally:
            for name in self._environment:
                os.environ.pop(name, None)
        self._servers[setup] = Server(setup, runner, backend)
        return self._servers[setup]

    def _plan_graph(self, sglang: Runtime, server: Server, layer: Any, batch: AttentionBatch) -> SglangPlan:
        case, setup = batch.case, server.setup
        if not server.graph_ready:
            rows = max(setup.draft_tokens, 1)
            server.backend.init_cuda_graph_state(case.num_requests, case.num_requests * rows)
            server.graph_ready = True
        sinks = batch.data.sinks

        def forward(made: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return self._forward(layer, made, q, k, v, sinks)

        captured = graphs.capture(sglang, setup, server.runner, server.backend, forward, batch)
        batch.reset()  # capture wrote its padding rows; the batch's own slots are stale again
        captured.out.fill_(torch.nan)  # what the replay does not write must not look right
        graphs.load(sglang, setup, server.backend, captured, batch)
        return SglangPlan(server, layer, captured.batch, captured)

    @staticmethod
    def _forward(layer: Any, made: Any, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None) -> Tensor:
        """q, k, v as a model passes them: [tokens, heads * dim]; sinks bf16, as models/gpt_oss.py keeps them."""
        extra = {} if sinks is None else {"sinks": sinks.to(torch.bfloat16)}
        out: Tensor = layer(q.flatten(1), k.flatten(1), v.flatten(1), made, **extra)
        return out


COMMON_RULES: tuple[Rule, ...] = (equal_extends, captured_as_production, clean_workspace)
