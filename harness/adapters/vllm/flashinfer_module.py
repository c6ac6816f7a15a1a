"""A pretended `flashinfer` package: the wrapper classes that vLLM's backend makes, over an emulation.

Only for a machine without a GPU. What vLLM plans (indptr, indices, last page lengths, the split into decodes and
prefills, fast plans under a graph) reaches the emulated wrappers unchanged. Members with an underscore are those that
vLLM's forward asks for. Whatever the emulation would drop is no parameter here, or refused.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from harness.adapters.sglang.flashinfer_module import FA3_HEAD_DIMS
from harness.adapters.sglang.standins import StandIn

NO_CAP = 0.0


class Planned:
    """What both wrappers keep of plan(): the arguments of the emulated plan() and what vLLM's forward compares."""

    _window_left: int
    _logits_soft_cap: float
    _sm_scale: float
    _causal: bool

    def __init__(self, library: Any, workspace: Tensor, kv_layout: str) -> None:
        self._library, self._workspace, self._kv_layout = library, workspace, kv_layout
        self._options: dict[str, Any] = {}

    def keep(
        self,
        *,
        causal: bool,
        sm_scale: float,
        window_left: int,
        logits_soft_cap: float | None,
        q_data_type: torch.dtype,
        kv_data_type: torch.dtype,
        o_data_type: torch.dtype,
        disable_split_kv: bool,
        fixed_split_size: int,
    ) -> None:
        if o_data_type != q_data_type or fixed_split_size != -1:
            raise RuntimeError("the emulated FlashInfer has no other output type and no fixed split size")
        self._window_left, self._sm_scale, self._causal = window_left, sm_scale, causal
        self._logits_soft_cap = logits_soft_cap or NO_CAP
        self._options = {
            "causal": causal,
            "sm_scale": sm_scale,
            "window_left": window_left,
            "logits_soft_cap": logits_soft_cap,
            "q_data_type": q_data_type,
            "kv_data_type": kv_data_type,
            "disable_split_kv": disable_split_kv,
        }


def call(
    wrapper: Any, q: Tensor, cache: Tensor, out: Tensor, k_scale: float, v_scale: float, kv_cache_sf: None
) -> Tensor:
    """One run() on a cache of [pages, 2, ...]: FlashInfer's _unpack_paged_kv_cache halves it along dimension 1."""
    if k_scale != 1.0 or v_scale != 1.0 or kv_cache_sf is not None:
        raise RuntimeError("the emulated FlashInfer takes no cache scales")
    k, v = cache.unbind(1)
    result: Tensor = wrapper.run(q, (k, v), out=out)
    return result


class Prefill(Planned):
    """BatchPrefillWithPagedKVCacheWrapper; "auto" is fa3 on Hopper for the head sizes that it has, else fa2."""

    def __init__(self, library: Any, workspace: Tensor, kv_layout: str, *, backend: str) -> None:
        super().__init__(library, workspace, kv_layout)
        _only_auto(backend)
        self._wrapper: Any = None

    def plan(
        self,
        *,
        qo_indptr: Tensor,
        paged_kv_indptr: Tensor,
        paged_kv_indices: Tensor,
        paged_kv_last_page_len: Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        page_size: int,
        **options: Any,
    ) -> None:
        self.keep(**options)
        backend = "fa3" if head_dim_qk in FA3_HEAD_DIMS else "fa2"
        self._wrapper = self._library.paged_wrapper(self._workspace, self._kv_layout, backend)
        sizes = (num_qo_heads, num_kv_heads, head_dim_qk, page_size)
        self._wrapper.plan(
            qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len, *sizes, **self._options
        )

    def run(
        self, q: Tensor, cache: Tensor, *, k_scale: float, v_scale: float, out: Tensor, kv_cache_sf: None
    ) -> Tensor:
        return call(self._wrapper, q, cache, out, k_scale, v_scale, kv_cache_sf)


class Decode(Planned):
    """BatchDecodeWithPagedKVCacheWrapper on tensor cores: one query row a request, fa2 ("auto", decode.py).

    The kernel reads indptr, indices and last page lengths where they lie on the device when it runs, under a graph in
    the buffers given here; what it schedules was counted on the host when it was planned.
    """

    def __init__(
        self,
        library: Any,
        workspace: Tensor,
        kv_layout: str,
        *,
        use_cuda_graph: bool,
        paged_kv_indptr_buffer: Tensor | None,
        paged_kv_indices_buffer: Tensor | None,
        paged_kv_last_page_len_buffer: Tensor | None,
        use_tensor_cores: bool,
        backend: str,
    ) -> None:
        super().__init__(library, workspace, kv_layout)
        _only_auto(backend)
        if not use_tensor_cores:
            raise RuntimeError("the emulated decode wrapper is the one of tensor cores")
        self.is_cuda_graph_enabled = use_cuda_graph
        self._buffers: tuple[Tensor, Tensor, Tensor] | None = None  # indptr, indices, last_page_len
        if use_cuda_graph:
            given = (paged_kv_indptr_buffer, paged_kv_indices_buffer, paged_kv_last_page_len_buffer)
            indptr, indices, last_page_len = (buffer for buffer in given if buffer is not None)
            self._buffers = (indptr, indices, last_page_len)
        self._wrapper = library.paged_wrapper(workspace, kv_layout, "fa2")
        self._sizes: tuple[int, int, int, int] = (0, 0, 0, 0)
        self._lengths = torch.empty(0)

    def plan(
        self,
        *,
        indptr: Tensor,
        indices: Tensor,
        last_page_len: Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim: int,
        page_size: int,
        pos_encoding_mode: str,
        data_type: None,
        rope_scale: None,
        rope_theta: None,
        non_blocking: bool,
        block_tables: None,
        seq_lens: None,
        **options: Any,
    ) -> None:
        del rope_scale, rope_theta, non_blocking
        if pos_encoding_mode != "NONE" or any(given is not None for given in (data_type, block_tables, seq_lens)):
            raise RuntimeError("the emulated decode wrapper takes no rotary embedding, block tables or lengths")
        self.keep(causal=False, **options)
        self._sizes = (num_qo_heads, num_kv_heads, head_dim, page_size)
        if self.is_cuda_graph_enabled:
            to_indptr, to_indices, to_last_page_len = self._of_size(last_page_len, indices)
            to_indptr.copy_(indptr)
            to_last_page_len.copy_(last_page_len)
            to_indices[: len(indices)].copy_(indices)
        else:
            self._buffers = (indptr.clone(), indices, last_page_len.clone())
        self._lengths = lengths(indptr, last_page_len, page_size)

    def fast_plan(self, indptr: Tensor, indices: Tensor, last_page_len: Tensor, page_size: int) -> None:
        """decode.py, fast_decode_plan: schedules anew and leaves the buffers to the caller."""
        self._of_size(last_page_len, indices)
        self._lengths = lengths(indptr, last_page_len, page_size)

    def run(
        self, q: Tensor, cache: Tensor, *, k_scale: float, v_scale: float, out: Tensor, kv_cache_sf: None
    ) -> Tensor:
        if self._buffers is None:
            raise RuntimeError("run() before plan()")
        indptr, indices, last_page_len = self._buffers
        there = lengths(indptr, last_page_len, self._sizes[3])
        if not torch.equal(there, self._lengths):
            raise RuntimeError(
                f"decode was planned for lengths {self._lengths.tolist()}; its buffers say {there.tolist()}"
            )
        rows = torch.arange(indptr.numel(), dtype=torch.int32)
        self._wrapper.plan(rows, indptr, indices, last_page_len, *self._sizes, **self._options)
        return call(self._wrapper, q, cache, out, k_scale, v_scale, kv_cache_sf)

    def _of_size(self, last_page_len: Tensor, indices: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """A graph's buffers. Raises ValueError, as FlashInfer does, for what they cannot hold."""
        if self._buffers is None:
            raise RuntimeError("the first plan of a decode wrapper is a full one")
        if len(last_page_len) != len(self._buffers[2]):
            raise ValueError(f"The batch size should be fixed in cudagraph mode: {len(last_page_len)}.")
        if len(indices) > len(self._buffers[1]):
            raise ValueError("The size of indices should be less than or equal to the allocated buffer")
        return self._buffers


def lengths(indptr: Tensor, last_page_len: Tensor, page_size: int) -> Tensor:
    """page.py, get_seq_lens: int32 [requests] of indptr [requests + 1]."""
    return (indptr.diff() - 1).clamp(min=0) * page_size + last_page_len


def _only_auto(backend: str) -> None:
    if backend != "auto":
        raise RuntimeError(f"the emulated FlashInfer resolves 'auto' alone, not {backend!r}")


def make_classes(library: Any) -> dict[str, Any]:
    """The names of `flashinfer` that are called; `library` is EmulatedFlashInfer."""

    class BatchPrefill(Prefill):
        def __init__(self, workspace: Tensor, kv_layout: str, **options: Any) -> None:
            super().__init__(library, workspace, kv_layout, **options)

    class BatchDecode(Decode):
        def __init__(self, workspace: Tensor, kv_layout: str, **options: Any) -> None:
            super().__init__(library, workspace, kv_layout, **options)

    return {"BatchPrefillWithPagedKVCacheWrapper": BatchPrefill, "BatchDecodeWithPagedKVCacheWrapper": BatchDecode}


def fast_decode_plan(
    wrapper: Decode, *, indptr: Tensor, indices: Tensor, last_page_len: Tensor, page_size: int, **options: Any
) -> None:
    """`flashinfer.decode.fast_decode_plan`; the window, scale and cap of the first plan() stay."""
    del options
    wrapper.fast_plan(indptr, indices, last_page_len, page_size)


def make_modules(library: Any) -> dict[str, ModuleType]:
    """`flashinfer` and the submodules that vLLM's backend imports; every other name raises when it is called."""
    modules: dict[str, ModuleType] = {}
    for name in ("flashinfer", "flashinfer.decode", "flashinfer.prefill", "flashinfer.utils"):
        modules[name] = StandIn(name)
        modules[name].__spec__ = ModuleSpec(name, None, is_package=True)
        modules[name].__path__ = []
    modules["flashinfer"].__dict__.update(make_classes(library), __version__=library.version)
    modules["flashinfer.decode"].__dict__["fast_decode_plan"] = fast_decode_plan
    return modules


@contextmanager
def in_sight(library: Any) -> Iterator[None]:
    """While the block imports vLLM's backend, `flashinfer` is the pretended one, and triton.jit the interpreter's.

    The interpreter runs the backend's one kernel on this path, the copy of page indices.
    """
    triton = importlib.import_module("triton")
    modules = make_modules(library)
    kept = {name: sys.modules.pop(name, None) for name in modules}
    sys.modules.update(modules)
    try:
        with triton.knobs.runtime.scope():
            triton.knobs.runtime.interpret = True
            yield
    finally:
        for name, original in kept.items():
            if original is None:
                del sys.modules[name]
            else:
                sys.modules[name] = original
