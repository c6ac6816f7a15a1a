"""Stand-in for the contract of FlashAttention's paged varlen forward (generations 2, 3 and 4).

What is kept: bottom-right alignment (query i of a request sits at seqused_k - qo_len + i), the
inclusive window on both sides, soft cap before the mask, sinks in the denominator and the LSE,
natural LSE [heads, rows], rows with no key (out 0; LSE -inf, in FA2 +inf, with a sink the sink), kv
splits with fp32 partial states, and that host maxima bound what a launch can cover: rows past
max_seqlen_q stay unwritten and keys past max_seqlen_k unread.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from torch import Tensor

from cases.schema import KvLayout
from harness.adapters.flash_attention import LibraryTraits, VarlenCall
from harness.emulation import kernel
from harness.emulation.graphs import EmulatedGraph
from harness.emulation.hooks import Hooks, Launch

TRAITS = {
    "fa2": LibraryTraits(page_size_multiple=16, splits="one"),
    "fa3": LibraryTraits(),
    "fa4": LibraryTraits(sinks=True, splits="one"),
}


class EmulatedFlashAttention:
    """The library object that the FlashAttention adapters take, in plain PyTorch on any device."""

    is_emulated = True

    def __init__(self, backend: str, hooks: Hooks | None = None) -> None:
        self.backend = backend
        self.version = f"emulated {backend}"
        self.traits = TRAITS[backend]
        self.hooks = Hooks() if hooks is None else hooks

    def varlen(self, call: VarlenCall) -> tuple[Tensor, Tensor]:
        """out [rows, heads, dim] and natural lse [heads, rows]; see VarlenCall."""
        rows, heads = call.q.shape[:2]
        shape = (rows, heads, call.v_pool.shape[-1])
        out = call.q.new_full(shape, torch.nan) if call.out is None else call.out
        if out.shape != shape or out.dtype != call.q.dtype:
            raise ValueError(f"out is {tuple(out.shape)} {out.dtype}; expected {shape} {call.q.dtype}.")
        left, right = call.window_size
        launch = Launch(
            kernel="flash_attention.varlen",
            backend=self.backend,
            num_qo_heads=heads,
            num_kv_heads=call.k_pool.shape[2],
            sm_scale=call.softmax_scale,
            soft_cap=call.softcap,
            window=(left, 0 if call.causal else right),
            num_splits=1 if call.num_splits is None else call.num_splits,
            empty_lse=torch.inf if self.backend == "fa2" else -torch.inf,
            page_size=call.k_pool.shape[1],
            max_seqlen_q=call.max_seqlen_q,
            max_seqlen_k=call.max_seqlen_k,
        )
        bounds = [int(at) for at in call.cu_seqlens_q.tolist()]
        lse = torch.full((rows, heads), torch.nan, dtype=torch.float32, device=call.q.device)
        kernel.run_requests(
            launch,
            self.hooks,
            call.q,
            list(itertools.pairwise(bounds)),
            [int(length) for length in call.seqused_k.tolist()],
            lambda request: kernel.paged_fetch(
                request, self.hooks, call.k_pool, call.v_pool, call.page_table[request.index], KvLayout.NHD
            ),
            out,
            lse,
            sinks=call.sinks,
        )
        result = self.hooks.output(launch, out)
        if result is not out:
            out.copy_(result)
        return out, self.hooks.lse(launch, lse.transpose(0, 1).contiguous())

    def graph(self, function: Callable[[], tuple[Tensor, Tensor]]) -> EmulatedGraph:
        return EmulatedGraph(function)

    def copy_metadata(self, name: str, static: Tensor, live: Tensor) -> None:
        static.copy_(self.hooks.graph_copy(name, static, live))
