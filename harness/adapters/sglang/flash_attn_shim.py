"""`sgl_kernel.flash_attn` over an installed FlashAttention 3: the one stand-in that computes attention.

SGLang's own build of FlashAttention 3 is a large library of its own fork. Where it is not installed, the
two calls that its backends make are passed on to another build (vLLM's, FlashAttention's own, or the
emulation), argument by argument. Calls that no dense paged path makes are refused.

Every call can be recorded for a later replay, which is how a CUDA graph is emulated on a machine
without a GPU: host integers keep their value of the capture, tensors are read anew.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from harness.adapters.flash_attention import FlashAttentionLibrary, VarlenCall

# The order of sgl_kernel.flash_attn.flash_attn_with_kvcache (0.5.12 to 0.5.23).
PARAMETERS = (
    *("q", "k_cache", "v_cache", "k", "v", "qv", "rotary_cos", "rotary_sin", "cache_seqlens", "cache_batch_idx"),
    *("cache_leftpad", "page_table", "cu_seqlens_q", "cu_seqlens_k_new", "max_seqlen_q", "rotary_seqlens"),
    *("q_descale", "k_descale", "v_descale", "softmax_scale", "causal", "window_size", "attention_chunk", "softcap"),
    *("rotary_interleaved", "scheduler_metadata", "num_splits", "pack_gqa", "sm_margin", "return_softmax_lse"),
    *("sinks", "out"),
)
NOT_PASSED_ON = (
    *("k", "v", "qv", "rotary_cos", "rotary_sin", "cache_batch_idx", "cache_leftpad", "rotary_seqlens"),
    *("q_descale", "k_descale", "v_descale", "attention_chunk"),
)


class FlashAttnShim:
    """The functions of sgl_kernel.flash_attn; `library` computes."""

    def __init__(self, library: FlashAttentionLibrary) -> None:
        self.library = library
        self.record: list[Callable[[], None]] | None = None

    def flash_attn_with_kvcache(self, *positional: Any, **named: Any) -> Any:
        """q [tokens, heads, dim], caches [pages, page_size, heads, dim]; out, or (out, lse [heads, tokens]).

        Takes the arguments of sgl_kernel.flash_attn, in its order. `cu_seqlens_k_new` describes new keys
        passed in `k`; without `k` the kernel does not read it. `scheduler_metadata` only schedules.
        """
        given = dict(zip(PARAMETERS, positional, strict=False)) | named
        refused = [name for name in NOT_PASSED_ON if given.get(name) is not None]
        if refused:
            raise RuntimeError(f"sgl_kernel.flash_attn shim: {', '.join(refused)} not passed on")
        q, k_cache, page_table = given["q"], given["k_cache"], given["page_table"]
        scale, window = given.get("softmax_scale"), given.get("window_size") or (-1, -1)
        call = VarlenCall(
            q=q,
            k_pool=k_cache,
            v_pool=given["v_cache"],
            cu_seqlens_q=given["cu_seqlens_q"],
            seqused_k=given["cache_seqlens"],
            page_table=page_table,
            max_seqlen_q=given["max_seqlen_q"],
            max_seqlen_k=page_table.shape[1] * k_cache.shape[1],  # as flash_api.cpp takes it for a paged cache
            softmax_scale=q.shape[-1] ** -0.5 if scale is None else scale,
            causal=given.get("causal", False),
            window_size=(window[0], window[1]),
            softcap=given.get("softcap", 0.0),
            num_splits=given.get("num_splits") or None,
            sinks=given.get("sinks"),
            out=given.get("out"),
        )
        result, lse = self.library.varlen(call)
        if self.record is not None:
            self.record.append(lambda: self._again(call, result, lse))
        return (result, lse) if given.get("return_softmax_lse") else result

    def _again(self, call: VarlenCall, result: Tensor, lse: Tensor) -> None:
        for address, value in zip((result, lse), self.library.varlen(call), strict=True):
            address.copy_(value)

    def flash_attn_varlen_func(self, *args: Any, **kwargs: Any) -> Any:
        del args, kwargs
        raise RuntimeError(
            "sgl_kernel.flash_attn shim: flash_attn_varlen_func is not passed on (no paged path calls it)"
        )

    def get_scheduler_metadata(self, *args: Any, **kwargs: Any) -> None:
        """None: the kernel then makes its own schedule, as it does where SGLang precomputes none."""
        del args, kwargs

    def fill(self, module: Any) -> None:
        """Put the functions into a module."""
        for name in ("flash_attn_with_kvcache", "flash_attn_varlen_func", "get_scheduler_metadata"):
            setattr(module, name, getattr(self, name))
