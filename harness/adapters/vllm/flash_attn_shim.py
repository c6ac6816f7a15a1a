"""`vllm.vllm_flash_attn` on a machine without a GPU: its function over the emulated FlashAttention 3."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from harness.adapters.flash_attention import FlashAttentionLibrary, VarlenCall


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
