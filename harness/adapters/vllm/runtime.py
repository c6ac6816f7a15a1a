"""vLLM in this process: imported once, beside its stand-ins, with the kernels it is to use."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from harness.adapters.flash_attention import FlashAttentionLibrary, VarlenCall
from harness.adapters.sglang.pretend import pretend_cuda
from harness.adapters.vllm import standins
from harness.adapters.vllm.tree import Tree, find_tree

BACKEND = "vllm.v1.attention.backends.flash_attn"


class Runtime:
    """The imported vLLM. Make it with `runtime`; a process has one.

    emulated: gives the emulated FlashAttention on a machine without a GPU; None uses vLLM's own build
    """

    def __init__(self, emulated: Callable[[], FlashAttentionLibrary] | None) -> None:
        self.emulated = emulated is not None
        self.tree: Tree = find_tree()
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
        has_compiled = any((self.tree.root / "vllm").glob("_C*.so")) and not self.emulated
        compiled = () if has_compiled else standins.COMPILED
        if self.emulated:
            compiled = (*compiled, "vllm.vllm_flash_attn._vllm_fa3_C")
        with self.surroundings():
            importlib.import_module("transformers")  # it must not see a stand-in
            self.stand_ins = standins.install(compiled)
            platforms = importlib.import_module("vllm.platforms")
            if self.emulated:
                platforms.__dict__["_current_platform"] = importlib.import_module(
                    "vllm.platforms.cuda"
                ).NonNvmlCudaPlatform()
            self.backend = importlib.import_module(BACKEND)
            if emulated is not None:
                self.backend.__dict__["flash_attn_varlen_func"] = FlashAttnShim(emulated())
                self.backend.__dict__["get_scheduler_metadata"] = no_schedule
            if not has_compiled:
                self.backend.__dict__["reshape_and_cache_flash"] = store_with_index_put

    @contextmanager
    def surroundings(self) -> Iterator[None]:
        """Where vLLM's code runs: CUDA pretended without a GPU."""
        with torch.no_grad():
            if self.emulated:
                with pretend_cuda():
                    yield
            else:
                yield


_RUNTIME: Runtime | None = None


def runtime(emulated: Callable[[], FlashAttentionLibrary] | None) -> Runtime:
    """The process's vLLM, imported on the first call. Raises VllmUnavailable."""
    global _RUNTIME
    if _RUNTIME is None:
        _RUNTIME = Runtime(emulated)
    if _RUNTIME.emulated != (emulated is not None):
        raise RuntimeError("this process runs vLLM on real kernels already; emulated ones need another process")
    return _RUNTIME


def store_with_index_put(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    kv_cache_dtype: str,
    k_scale: Tensor,
    v_scale: Tensor,
) -> None:
    """vLLM's cache write by plain indexing: caches [pages, page_size, heads, dim], slot_mapping int64 [tokens].

    A slot of -1 is padding, which the kernel skips; here it is written to slot 0 of page 0, which is nobody's.
    """
    del k_scale, v_scale
    if kv_cache_dtype != "auto":
        raise RuntimeError(f"the stand-in for reshape_and_cache_flash does not write a {kv_cache_dtype} cache")
    slots = slot_mapping.clamp(min=0)
    pages, offsets = slots // key_cache.shape[1], slots % key_cache.shape[1]
    count = slot_mapping.shape[0]
    key_cache[pages, offsets] = key[:count]
    value_cache[pages, offsets] = value[:count]


def no_schedule(**arguments: Any) -> None:
    """Without FA3's own scheduler there is no metadata: the emulation schedules nothing."""
    del arguments


class FlashAttnShim:
    """`vllm.vllm_flash_attn.flash_attn_varlen_func` over the emulation; refuses what it would drop."""

    def __init__(self, library: FlashAttentionLibrary) -> None:
        self.library = library

    def __call__(
        self,
        *,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        cu_seqlens_q: Tensor,
        max_seqlen_q: int,
        seqused_k: Tensor,
        max_seqlen_k: int,
        softmax_scale: float,
        causal: bool,
        window_size: list[int],
        block_table: Tensor,
        softcap: float,
        num_splits: int,
        s_aux: Tensor | None,
        alibi_slopes: None = None,
        scheduler_metadata: None = None,
        fa_version: int = 3,
        q_descale: Tensor | None = None,
        k_descale: Tensor | None = None,
        v_descale: Tensor | None = None,
    ) -> None:
        scales = [s for s in (q_descale, k_descale, v_descale) if s is not None]
        if alibi_slopes is not None or scheduler_metadata is not None or any(not bool(s.eq(1).all()) for s in scales):
            raise RuntimeError("the emulated flash_attn_varlen_func takes no ALiBi slopes, schedules or scales")
        if fa_version != 3:
            raise RuntimeError(f"FlashAttention 3 is emulated, not {fa_version}")
        self.library.varlen(
            VarlenCall(
                q=q,
                k_pool=k,
                v_pool=v,
                cu_seqlens_q=cu_seqlens_q,
                seqused_k=seqused_k,
                page_table=block_table,
                max_seqlen_q=max_seqlen_q,
                max_seqlen_k=max_seqlen_k,
                softmax_scale=softmax_scale,
                causal=causal,
                window_size=(window_size[0], window_size[1]),
                softcap=softcap,
                num_splits=num_splits or None,
                sinks=None if s_aux is None else s_aux.float(),
                out=out,
            )
        )
