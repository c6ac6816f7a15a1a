"""The real FlashAttention builds behind one interface. Importing this module imports none of them.

Each class calls one public build, read at the versions in its text:

- FlashAttention4: flash-attn-4 4.0.0b36, `flash_attn.cute.interface`.
- FlashAttention3Kvcache: `flash_attn_interface` (the hopper/ build) or `sgl_kernel.flash_attn`.
- VllmFlashAttention: `vllm.vllm_flash_attn` of vLLM 0.22, generations 3 and 2.
- FlashAttention2: flash-attn 2.8.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from importlib import metadata
from typing import Any

import torch
from torch import Tensor

from harness.adapters.flash_attention import FlashAttentionLibrary, LibraryTraits, VarlenCall
from harness.errors import UsageError


class CudaGraph:
    """A captured call: warmed up on a side stream, as torch asks for, then captured once."""

    WARMUPS = 2

    def __init__(self, function: Callable[[], tuple[Tensor, Tensor]]) -> None:
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(self.WARMUPS):
                function()
        torch.cuda.current_stream().wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self.outputs = function()

    def replay(self) -> None:
        self._graph.replay()


class _CudaLibrary:
    """What the real builds share: graphs, copies, a version."""

    is_emulated = False
    traits: LibraryTraits

    def __init__(self, module: str, distribution: str) -> None:
        self._module = _imported(module)
        self.version = _version(distribution)

    def graph(self, function: Callable[[], tuple[Tensor, Tensor]]) -> CudaGraph:
        return CudaGraph(function)

    def copy_metadata(self, name: str, static: Tensor, live: Tensor) -> None:
        del name
        static.copy_(live)


class FlashAttention4(_CudaLibrary):
    """`_flash_attn_fwd`, which the public flash_attn_varlen_func wraps: the public one takes no `out`.

    A window bound of -1 is passed as None: the library reads (L, -1) literally, as a band that ends one
    key before the query.
    """

    traits = LibraryTraits(
        sinks=True, splits="one", packages=("flash-attn-4", "nvidia-cutlass-dsl", "quack-kernels", "apache-tvm-ffi")
    )

    def __init__(self) -> None:
        super().__init__("flash_attn.cute.interface", "flash-attn-4")

    def varlen(self, call: VarlenCall) -> tuple[Tensor, Tensor]:
        left, right = (None if bound < 0 else bound for bound in call.window_size)
        lse = torch.full(call.q.shape[1::-1], torch.nan, dtype=torch.float32, device=call.q.device)
        out, lse, *_ = self._module._flash_attn_fwd(
            call.q,
            call.k_pool,
            call.v_pool,
            cu_seqlens_q=call.cu_seqlens_q,
            seqused_k=call.seqused_k,
            max_seqlen_q=call.max_seqlen_q,
            max_seqlen_k=call.max_seqlen_k,
            page_table=call.page_table,
            softmax_scale=call.softmax_scale,
            causal=call.causal,
            softcap=call.softcap,
            window_size_left=left,
            window_size_right=right,
            learnable_sink=call.sinks,
            num_splits=1,
            return_lse=True,
            out=call.out,
            lse=lse,
        )
        return out, lse


class FlashAttention3Kvcache(_CudaLibrary):
    """`flash_attn_with_kvcache(cache_seqlens=S)` without new k, v: they are in the cache already.

    The call derives the longest kv from the page table's width, and takes no `out`.
    """

    def __init__(self, module: str, distribution: str) -> None:
        super().__init__(module, distribution)
        self._function = self._module.flash_attn_with_kvcache
        self.traits = LibraryTraits(takes_out=False, packages=(distribution,))

    def varlen(self, call: VarlenCall) -> tuple[Tensor, Tensor]:
        out, lse, *_ = self._function(
            call.q,
            call.k_pool,
            call.v_pool,
            cache_seqlens=call.seqused_k,
            page_table=call.page_table,
            cu_seqlens_q=call.cu_seqlens_q,
            max_seqlen_q=call.max_seqlen_q,
            softmax_scale=call.softmax_scale,
            causal=call.causal,
            window_size=call.window_size,
            softcap=call.softcap,
            num_splits=call.num_splits or 0,
            return_softmax_lse=True,
        )
        return out, lse


class VllmFlashAttention(_CudaLibrary):
    """`flash_attn_varlen_func(block_table=, seqused_k=S, fa_version=3 or 2)` of vLLM's build.

    Generation 3 takes sinks as bf16 for up to 64 query heads; generation 2 needs page sizes of 16 and
    takes no split count.
    """

    def __init__(self, generation: int) -> None:
        super().__init__("vllm.vllm_flash_attn.flash_attn_interface", "vllm")
        self._generation = generation
        if not getattr(self._module, f"FA{generation}_AVAILABLE"):
            reason = getattr(self._module, f"FA{generation}_UNAVAILABLE_REASON")
            raise UsageError(f"vLLM's FlashAttention {generation} cannot be loaded: {reason}.")
        self.traits = (
            LibraryTraits(sinks=True, max_sink_heads=64, packages=("vllm",))
            if generation == 3
            else LibraryTraits(page_size_multiple=16, splits="one", packages=("vllm",))
        )

    def varlen(self, call: VarlenCall) -> tuple[Tensor, Tensor]:
        out, lse = self._module.flash_attn_varlen_func(
            call.q,
            call.k_pool,
            call.v_pool,
            max_seqlen_q=call.max_seqlen_q,
            cu_seqlens_q=call.cu_seqlens_q,
            max_seqlen_k=call.max_seqlen_k,
            seqused_k=call.seqused_k,
            softmax_scale=call.softmax_scale,
            causal=call.causal,
            window_size=list(call.window_size),
            softcap=call.softcap,
            block_table=call.page_table,
            return_softmax_lse=True,
            out=call.out,
            num_splits=call.num_splits or 0,
            fa_version=self._generation,
            s_aux=None if call.sinks is None else call.sinks.to(torch.bfloat16),
        )
        return out, lse


class FlashAttention2(_CudaLibrary):
    """`flash_attn_varlen_func(block_table=)` of flash-attn 2: lengths as cu_seqlens_k, no `out`.

    With return_attn_probs it returns (out, lse, probabilities); the last is empty without dropout.
    """

    traits = LibraryTraits(page_size_multiple=256, splits="none", takes_out=False, packages=("flash-attn",))

    def __init__(self) -> None:
        super().__init__("flash_attn.flash_attn_interface", "flash-attn")

    def varlen(self, call: VarlenCall) -> tuple[Tensor, Tensor]:
        cu_seqlens_k = torch.nn.functional.pad(call.seqused_k.cumsum(0, dtype=torch.int32), (1, 0))
        out, lse, _ = self._module.flash_attn_varlen_func(
            call.q,
            call.k_pool,
            call.v_pool,
            call.cu_seqlens_q,
            cu_seqlens_k,
            call.max_seqlen_q,
            call.max_seqlen_k,
            softmax_scale=call.softmax_scale,
            causal=call.causal,
            window_size=call.window_size,
            softcap=call.softcap,
            return_attn_probs=True,
            block_table=call.page_table,
        )
        return out, lse


# -- which build ---------------------------------------------------------------------------------
def load_flash_attention_4() -> FlashAttention4:
    library = FlashAttention4()
    known = inspect.signature(library._module._flash_attn_fwd).parameters
    missing = [name for name in ("out", "lse", "page_table", "seqused_k", "learnable_sink") if name not in known]
    if missing:
        raise UsageError(f"flash-attn-4 {library.version} has no {', '.join(missing)}; install 4.0.0b20 or later.")
    return library


def load_flash_attention_3() -> Any:
    """The first build that imports and takes a paged, windowed call."""
    builds: tuple[tuple[str, Callable[[], Any]], ...] = (
        ("flash_attn_interface", lambda: FlashAttention3Kvcache("flash_attn_interface", "flash-attn-3")),
        ("sgl_kernel", lambda: FlashAttention3Kvcache("sgl_kernel.flash_attn", "sgl-kernel")),
        ("vllm", lambda: VllmFlashAttention(3)),
    )
    return _first_usable("FlashAttention 3", builds)


def load_flash_attention_2() -> Any:
    builds: tuple[tuple[str, Callable[[], Any]], ...] = (
        ("flash_attn", FlashAttention2),
        ("vllm", lambda: VllmFlashAttention(2)),
    )
    return _first_usable("FlashAttention 2", builds)


def probe(library: FlashAttentionLibrary) -> None:
    """Try one tiny paged, windowed call: some builds leave either out and only say so when called."""
    device = torch.device("cuda")
    q = torch.zeros((2, 1, 64), dtype=torch.bfloat16, device=device)
    pool = torch.zeros((2, 256, 1, 64), dtype=torch.bfloat16, device=device)
    ints = {"dtype": torch.int32, "device": device}
    library.varlen(
        VarlenCall(
            q=q,
            k_pool=pool,
            v_pool=pool,
            cu_seqlens_q=torch.tensor([0, 2], **ints),  # type: ignore[arg-type]
            seqused_k=torch.tensor([5], **ints),  # type: ignore[arg-type]
            page_table=torch.tensor([[1]], **ints),  # type: ignore[arg-type]
            max_seqlen_q=2,
            max_seqlen_k=5,
            softmax_scale=0.125,
            causal=True,
            window_size=(2, 0),
            softcap=0.0,
            num_splits=None,
            sinks=None,
            out=torch.empty_like(q) if library.traits.takes_out else None,
        )
    )
    torch.cuda.synchronize()


def _first_usable(what: str, builds: tuple[tuple[str, Callable[[], Any]], ...]) -> Any:
    refused = []
    for name, make in builds:
        try:
            library = make()
            probe(library)
            return library
        except (ImportError, UsageError, RuntimeError, TypeError, AttributeError) as problem:
            lines = str(problem).strip().splitlines() or [type(problem).__name__]
            refused.append(f"{name}: {lines[0]}")
    raise UsageError(f"no usable build of {what}: {'; '.join(refused)}")


def _imported(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as problem:
        raise UsageError(f"{module} cannot be imported: {problem}.") from problem


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "unknown"
