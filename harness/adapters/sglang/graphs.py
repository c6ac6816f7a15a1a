"""A captured forward pass of an SGLang backend: static inputs, capture for one batch, replay on another.

Follows speculative/eagle_draft_extend_cuda_graph_runner.py and model_executor/cuda_graph_runner.py: the
graph's inputs are buffers, `init_forward_metadata_*` runs outside the graph before capture and before each
replay, and rows past the batch's own are padding that writes to slot 0. Without a GPU the kernel calls and
cache writes of the capture are recorded and run again: host integers keep their value of the capture.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from cases.batch import AttentionBatch
from cases.schema import Mode, Request
from harness.adapters.sglang.flash_attn_shim import FlashAttnShim
from harness.adapters.sglang.forward import Lengths, chain_mask, forward_batch, lengths, positions_of
from harness.adapters.sglang.runtime import Runtime
from harness.adapters.sglang.setup import Setup

WARMUPS = 2  # eager passes before capture, as SGLang's runners do: just-in-time kernels are compiled there


@dataclass(slots=True)
class Captured:
    """A graph and the buffers it reads: q, k, v [tokens, heads, dim] and the ForwardBatch's tensors."""

    batch: Any
    q: Tensor
    k: Tensor
    v: Tensor
    out: Tensor
    replay: Callable[[], None]


def capture(
    runtime: Runtime,
    setup: Setup,
    runner: Any,
    backend: Any,
    forward: Callable[[Any, Tensor, Tensor, Tensor], Tensor],
    batch: AttentionBatch,
) -> Captured:
    """Capture `forward(fb, q, k, v)` for the case's capture_requests; nothing of the case's data is read."""
    case = batch.case
    assert case.execution.capture_requests is not None
    sizes = _captured_lengths(case.execution.capture_requests, case.mode)
    tokens = sum(sizes.extend)
    made = forward_batch(
        setup,
        case.mode,
        sizes,
        torch.zeros(tokens, dtype=torch.int64, device=batch.device),
        positions=positions_of(sizes),
        spec_info=speculative_input(runtime, setup, case.mode, sizes, batch.device),
    )
    runtime.compat.bind(made, runner, backend)
    q, k, v = (
        torch.zeros((tokens, *like.shape[1:]), dtype=like.dtype, device=batch.device)
        for like in (batch.q, batch.k_new, batch.v_new)
    )
    runtime.compat.plan_graph(backend, made, tokens, capture=True)
    out, replay = _record(lambda: forward(made, q, k, v), runtime.shim, on_gpu=batch.device.type == "cuda")
    return Captured(made, q, k, v, out, replay)


def load(runtime: Runtime, setup: Setup, backend: Any, captured: Captured, batch: AttentionBatch) -> None:
    """Copy a batch into the graph's buffers and renew the metadata, as before a replay."""
    case, tokens = batch.case, batch.case.total_q
    sizes = lengths(case.requests, case.mode, prefix_only=False)
    target = captured.batch
    for buffer, rows in ((captured.q, batch.q), (captured.k, batch.k_new), (captured.v, batch.v_new)):
        buffer[:tokens].copy_(rows)
    target.out_cache_loc.zero_()
    target.out_cache_loc[:tokens].copy_(batch.new_slots)
    target.positions[:tokens].copy_(torch.tensor(positions_of(sizes), device=batch.device))
    target.seq_lens.copy_(torch.tensor(sizes.seq_lens, device=batch.device))
    target.seq_lens_cpu.copy_(torch.tensor(sizes.seq_lens))
    if target.extend_seq_lens is not None:
        target.extend_seq_lens.copy_(batch.extend_lens)
    spec_info = speculative_input(runtime, setup, case.mode, sizes, batch.device)
    if case.mode is Mode.DRAFT_EXTEND_V2:
        spec_info.extend_seq_lens_cpu = list(sizes.extend)
        spec_info.extend_seq_lens_tensor = target.extend_seq_lens
    view = SimpleNamespace(
        batch_size=case.num_requests,
        forward_mode=target.forward_mode,
        input_ids=target.input_ids,
        req_pool_indices=target.req_pool_indices,
        seq_lens=target.seq_lens,
        seq_lens_sum=sum(sizes.seq_lens),
        seq_lens_cpu=target.seq_lens_cpu,
        encoder_lens=None,
        out_cache_loc=target.out_cache_loc,
        positions=target.positions,
        spec_info=spec_info,
        extend_seq_lens=target.extend_seq_lens,
        extend_seq_lens_cpu=list(sizes.extend),
        extend_prefix_lens=None,
    )
    for name in ("kv_loc_plan",):
        if hasattr(target, name):
            setattr(view, name, getattr(target, name))
    runtime.compat.plan_graph(backend, view, int(captured.q.shape[0]), capture=False)


def speculative_input(runtime: Runtime, setup: Setup, mode: Mode, sizes: Lengths, device: torch.device) -> Any:
    if mode is Mode.TARGET_VERIFY:
        return runtime.compat.verify_input(setup, sizes, chain_mask(sizes, device))
    if mode is Mode.DRAFT_EXTEND_V2:
        return runtime.compat.draft_input(setup, sizes)
    return None


def _captured_lengths(requests: tuple[Request, ...], mode: Mode) -> Lengths:
    return lengths(requests, mode, prefix_only=False)


def _record(
    function: Callable[[], Tensor], shim: FlashAttnShim | None, *, on_gpu: bool
) -> tuple[Tensor, Callable[[], None]]:
    if not on_gpu:
        if shim is None:
            raise RuntimeError("without a GPU only the fa3 backend's graphs are emulated")
        calls: list[Callable[[], None]] = []
        shim.record = calls
        try:
            out = function()
        finally:
            shim.record = None

        def again() -> None:
            for call in calls:
                call()

        return out, again
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARMUPS):
            function()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = function()
    return out, graph.replay
