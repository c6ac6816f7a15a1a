"""What a vLLM backend is built for, and the configuration that its metadata builder and layer read.

The builder reads a handful of fields of VllmConfig. Here they are plain values for one dense attention
layer on one rank. The KV cache spec, the builder, the layer's implementation and its metadata are vLLM's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

from cases.batch import AttentionBatch

LAYER = "model.layers.0.self_attn.attn"
SPLITS_FOR_GRAPHS = 32  # vllm/config/attention.py, flash_attn_max_num_splits_for_cuda_graph


@dataclass(frozen=True, slots=True)
class Setup:
    """Everything a builder's buffers depend on; cases with the same Setup share a builder, as a server's layers do.

    backend:            the backend's module, as runtime.py names them
    flash_attn_version: AttentionConfig.flash_attn_version; None is vLLM's own choice (3 on Hopper)
    max_model_len:      the bound that a graph is captured with, in tokens
    """

    backend: str
    device: str
    dtype: str
    num_qo_heads: int
    num_kv_heads: int
    head_dim: int
    window_left: int | None
    logits_soft_cap: float | None
    sm_scale: float
    page_size: int
    kv_layout: str
    max_model_len: int
    graph: bool
    flash_attn_version: int | None


def setup_for(batch: AttentionBatch, backend: str, flash_attn_version: int | None) -> Setup:
    case = batch.case
    captured = case.execution.capture_requests or ()
    longest = max([batch.page_table.shape[1] * case.page_size, *(r.kv_len for r in captured)])
    return Setup(
        backend=backend,
        device=str(batch.device),
        dtype=case.dtype,
        num_qo_heads=case.num_qo_heads,
        num_kv_heads=case.num_kv_heads,
        head_dim=case.head_dim_qk,
        window_left=case.window_left,
        logits_soft_cap=case.logits_soft_cap,
        sm_scale=case.scale,
        page_size=case.page_size,
        kv_layout=str(case.kv_layout),
        max_model_len=1 << max(8, (longest - 1).bit_length()),
        graph=case.execution.uses_graph,
        flash_attn_version=flash_attn_version,
    )


@dataclass(slots=True)
class Parts:
    """vLLM's own objects for one layer."""

    setup: Setup
    config: Any
    builder: Any
    impl: Any
    layer: Any


def make_parts(setup: Setup, backend: Any) -> Parts:
    """The layer's implementation, then the builder, as vLLM's model loader and GPU runner order them.

    backend: vLLM's AttentionBackend class
    """
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.layers.attention import Attention
    from vllm.v1.kv_cache_interface import FullAttentionSpec, SlidingWindowSpec

    config = make_config(setup)
    device, dtype = torch.device(setup.device), getattr(torch, setup.dtype)
    window = None if setup.window_left is None else setup.window_left + 1  # vLLM's sliding_window counts the query
    with set_current_vllm_config(config):
        impl = backend.get_impl_cls()(
            num_heads=setup.num_qo_heads,
            head_size=setup.head_dim,
            scale=setup.sm_scale,
            num_kv_heads=setup.num_kv_heads,
            alibi_slopes=None,
            sliding_window=window,
            kv_cache_dtype="auto",
            logits_soft_cap=setup.logits_soft_cap,
        )
        layer = Attention.__new__(Attention)
        torch.nn.Module.__init__(layer)
        layer.impl = impl
        one = torch.ones((), dtype=torch.float32, device=device)
        layer._q_scale, layer._k_scale, layer._v_scale = one, one, one
        layer._k_scale_float, layer._v_scale_float = 1.0, 1.0
        config.compilation_config.static_forward_context[LAYER] = layer
        sizes = {"block_size": setup.page_size, "num_kv_heads": setup.num_kv_heads, "head_size": setup.head_dim}
        spec = (
            FullAttentionSpec(dtype=dtype, **sizes)
            if window is None
            else SlidingWindowSpec(dtype=dtype, sliding_window=window, **sizes)
        )
        builder = backend.get_builder_cls()(spec, [LAYER], config, device)
    return Parts(setup, config, builder, impl, layer)


def make_config(setup: Setup) -> Any:
    """The fields of VllmConfig that the two backends and their builders read (0.22)."""
    from vllm.config import CUDAGraphMode

    most = 512
    return SimpleNamespace(
        model_config=SimpleNamespace(
            dtype=getattr(torch, setup.dtype),
            is_hybrid=False,
            max_model_len=setup.max_model_len,
            get_num_attention_heads=lambda _: setup.num_qo_heads,
            get_num_kv_heads=lambda _: setup.num_kv_heads,
            get_head_size=lambda: setup.head_dim,
        ),
        parallel_config=SimpleNamespace(
            cp_kv_cache_interleave_size=1, decode_context_parallel_size=1, dcp_comm_backend="ag_rs"
        ),
        cache_config=SimpleNamespace(cache_dtype="auto", block_size=setup.page_size),
        compilation_config=SimpleNamespace(
            cudagraph_mode=CUDAGraphMode.FULL if setup.graph else CUDAGraphMode.NONE,
            max_cudagraph_capture_size=most,
            static_forward_context={},
        ),
        attention_config=SimpleNamespace(
            flash_attn_version=setup.flash_attn_version,
            flash_attn_max_num_splits_for_cuda_graph=SPLITS_FOR_GRAPHS,
            use_trtllm_attention=None,  # vLLM's own choice: on Blackwell alone
            disable_flashinfer_q_quantization=False,
        ),
        scheduler_config=SimpleNamespace(max_num_seqs=most),
        speculative_config=None,
        use_v2_model_runner=False,
    )
