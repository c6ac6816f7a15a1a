"""What an SGLang backend is built for, and the objects it is built from: a mock runner over real pools.

SGLang's attention backends read a few dozen fields of ModelRunner, ModelConfig and ServerArgs. Here they
are plain values for one dense MHA/GQA layer on one rank, no server. The request pool, the kv pool, the
ForwardBatch, RadixAttention and the backend itself are SGLang's own.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

from cases.schema import AttentionCase, Mode
from harness.adapters.sglang.flash_attn_shim import FlashAttnShim

SPARE_ROWS = 3  # rows of the request pool that no request of the batch owns; row 0 is SGLang's padding row


@dataclass(frozen=True, slots=True)
class Setup:
    """Everything a backend's buffers depend on; cases with the same Setup share a backend, as a server's do.

    context_len, num_slots and num_requests are sizes; `draft_tokens` is
    --speculative-num-draft-tokens (0: no speculative decoding), which SGLang fixes per server.
    """

    backend: str
    device: str
    dtype: str
    num_qo_heads: int
    num_kv_heads: int
    head_dim_qk: int
    head_dim_vo: int
    window_left: int | None
    logits_soft_cap: float
    page_size: int
    context_len: int
    num_slots: int
    num_requests: int
    draft_tokens: int
    graph: bool

    @property
    def torch_dtype(self) -> torch.dtype:
        dtype = getattr(torch, self.dtype)
        assert isinstance(dtype, torch.dtype)
        return dtype


def setup_for(case: AttentionCase, backend: str, device: torch.device, num_pages: int, columns: int) -> Setup:
    """The Setup of a case; sizes are rounded up so that many cases share one."""
    speculative = case.mode in (Mode.DRAFT_EXTEND_V2, Mode.TARGET_VERIFY)
    captured = case.execution.capture_requests or ()
    longest = max([columns * case.page_size, *(r.kv_len + r.extend_len for r in captured)])
    return Setup(
        backend=backend,
        device=str(device),
        dtype=case.dtype,
        num_qo_heads=case.num_qo_heads,
        num_kv_heads=case.num_kv_heads,
        head_dim_qk=case.head_dim_qk,
        head_dim_vo=case.head_dim_vo,
        window_left=case.window_left,
        logits_soft_cap=case.logits_soft_cap or 0.0,
        page_size=case.page_size,
        context_len=1 << max(8, (longest - 1).bit_length()),
        num_slots=(num_pages - 1) * case.page_size,  # SGLang adds one page, its padding page 0
        num_requests=case.num_requests,
        draft_tokens=max([case.max_extend_len, *(r.extend_len for r in captured)]) if speculative else 0,
        graph=case.execution.uses_graph,
    )


class ModelConfig:
    """The fields of sglang.srt.configs.model_config.ModelConfig that attention backends read."""

    def __init__(self, setup: Setup) -> None:
        from sglang.srt.configs.model_config import AttentionArch

        self.attention_arch = AttentionArch.MHA
        self.context_len = setup.context_len
        self.hidden_size = setup.num_qo_heads * setup.head_dim_qk
        self.num_attention_heads = setup.num_qo_heads
        self.num_key_value_heads = setup.num_kv_heads
        self.head_dim = setup.head_dim_qk
        self.v_head_dim = self.swa_v_head_dim = setup.head_dim_vo
        self.is_encoder_decoder = False
        self.is_multimodal = False
        self.is_generation = True
        self.is_hybrid_swa = setup.window_left is not None
        # Llama 4's chunked attention, not a sliding window: with it True fa3 asserts on a chunk size.
        self.is_local_attention_model = False
        self.attention_chunk_size = None
        self.sliding_window_size = setup.window_left
        self.model_is_mrope = False
        self.quantization = None
        self.linear_attn_registry_result = None
        self.hf_config = SimpleNamespace(
            architectures=["TinyForCausalLM"],
            hidden_size=self.hidden_size,
            num_attention_heads=setup.num_qo_heads,
            num_key_value_heads=setup.num_kv_heads,
            head_dim=setup.head_dim_qk,
            attn_logit_softcapping=setup.logits_soft_cap or None,
        )
        self.hf_config.get_text_config = lambda: self.hf_config
        self.hf_text_config = self.hf_config

    def get_num_attention_heads(self, tensor_parallel_size: int) -> int:
        return self.num_attention_heads // tensor_parallel_size

    def get_max_num_attention_heads(self) -> int:
        return self.num_attention_heads

    def get_num_kv_heads(self, tensor_parallel_size: int, dcp_size: int = 1) -> int:
        return self.num_key_value_heads // (tensor_parallel_size // dcp_size)


def server_arguments(setup: Setup) -> dict[str, Any]:
    """Values of ServerArgs that backends read and that differ from its defaults or would be derived."""
    return {
        "attention_backend": setup.backend,
        "chunked_prefill_size": 8192,
        "disable_radix_cache": False,
        "dllm_algorithm": None,
        "dllm_algorithm_config": None,
        "dp_size": 1,
        "enable_deterministic_inference": False,
        "enable_mis": False,
        "is_embedding": False,
        "kv_cache_dtype": "auto",
        "max_running_requests": None,
        "pp_size": 1,
        "revision": None,
        "speculative_algorithm": None,
        "speculative_eagle_topk": 1 if setup.draft_tokens else 0,
        "speculative_num_draft_tokens": setup.draft_tokens,
        "speculative_num_steps": max(0, setup.draft_tokens - 1),
        "tp_size": 1,
        "triton_attention_num_kv_splits": 8,
        "triton_attention_split_tile_size": None,
    }


def blank_server_args(values: dict[str, Any]) -> Any:
    """A ServerArgs with its defaults and `values`, without __post_init__, which wants a model's path."""
    from sglang.srt.server_args import ServerArgs

    args = object.__new__(ServerArgs)
    for f in dataclasses.fields(ServerArgs):
        if f.default is not dataclasses.MISSING:
            setattr(args, f.name, f.default)
        elif f.default_factory is not dataclasses.MISSING:
            setattr(args, f.name, f.default_factory())
    for name, value in values.items():
        derived = isinstance(getattr(ServerArgs, name, None), property)
        setattr(args, f"_{name}" if derived else name, value)
    return args


def make_runner(setup: Setup, server_args: Any) -> Any:
    """The mock ModelRunner: plain fields, and SGLang's own request and kv pools."""
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, ReqToTokenPool
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    rows = setup.num_requests + SPARE_ROWS
    runner = SimpleNamespace(
        device=setup.device,
        dtype=setup.torch_dtype,
        kv_cache_dtype=setup.torch_dtype,
        kv_cache_dtype_str="auto",
        gpu_id=0,
        page_size=setup.page_size,
        model_config=ModelConfig(setup),
        server_args=server_args,
        tp_size=1,
        dp_size=1,
        pp_size=1,
        attn_cp_size=1,
        ps=SimpleNamespace(tp_size=1, attn_cp_size=1),  # where fa3 of 0.5.16 to 0.5.20 looks for them
        is_draft_worker=False,
        spec_algorithm=SpeculativeAlgorithm.NONE,
        attention_chunk_size=None,
        init_new_workspace=False,
        is_hybrid_swa=setup.window_left is not None,
        sliding_window_size=setup.window_left,
        use_mla_backend=False,
        max_running_requests=rows,
        model=torch.nn.Module(),
        prefill_attention_backend_str=setup.backend,
        decode_attention_backend_str=setup.backend,
        draft_attention_backend=None,
        is_prefill_aware_swa=False,
        decode_num_tokens_per_req=lambda **_: 1,
        **dict.fromkeys(
            (
                "canary_manager",
                "hisparse_coordinator",
                "hybrid_gdn_config",
                "hybrid_lightning_config",
                "kimi_linear_config",
                "linear_attn_model_spec",
                "mamba2_config",
                "mambaish_config",
            )
        ),
    )
    runner.req_to_token_pool = ReqToTokenPool(
        size=rows, max_context_len=setup.context_len, device=setup.device, enable_memory_saver=False
    )
    runner.token_to_kv_pool = MHATokenToKVPool(
        size=setup.num_slots,
        page_size=setup.page_size,
        dtype=setup.torch_dtype,
        head_num=setup.num_kv_heads,
        head_dim=setup.head_dim_qk,
        v_head_dim=setup.head_dim_vo,
        layer_num=1,
        device=setup.device,
        enable_memory_saver=False,
        enable_alt_stream=False,
    )
    runner.token_to_kv_pool_allocator = SimpleNamespace(
        page_size=setup.page_size, get_kvcache=lambda: runner.token_to_kv_pool
    )
    return runner


def make_layer(setup: Setup, sm_scale: float) -> Any:
    """SGLang's RadixAttention, as a model makes it (models pass W - 1 as sliding_window_size, which is L)."""
    from sglang.srt.layers.radix_attention import RadixAttention

    return RadixAttention(
        num_heads=setup.num_qo_heads,
        head_dim=setup.head_dim_qk,
        scaling=sm_scale,
        num_kv_heads=setup.num_kv_heads,
        layer_id=0,
        logit_cap=setup.logits_soft_cap,
        v_head_dim=setup.head_dim_vo,
        sliding_window_size=-1 if setup.window_left is None else setup.window_left,
    )


def store_with_index_put(shim: FlashAttnShim | None) -> None:
    """SGLang's cache write by plain indexing: its own kernel is compiled just in time and is not under test.

    Where a graph is emulated, the write is recorded beside the kernel calls.
    """
    import sglang.srt.mem_cache.memory_pool as memory_pool

    def store(k: Any, v: Any, k_cache: Any, v_cache: Any, indices: Any, *args: Any, **kwargs: Any) -> None:
        del args, kwargs

        def write() -> None:
            k_cache[indices] = k.view(-1, *k_cache.shape[1:])
            v_cache[indices] = v.view(-1, *v_cache.shape[1:])

        write()
        if shim is not None and shim.record is not None:
            shim.record.append(write)

    memory_pool._set_kv_buffer_impl = store
