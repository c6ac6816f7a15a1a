"""A pretended `flashinfer` package: the wrapper classes that SGLang's backend makes, over an emulation.

Only for a machine without a GPU. What SGLang plans (indptr, indices, masks, windows given at plan or at
run, soft caps) reaches the emulated wrappers unchanged; the emulation knows which of it the kernels heed.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from harness.adapters.sglang.standins import StandIn

BACKEND = "sglang.srt.layers.attention.flashinfer_backend"
FA3_HEAD_DIMS = (64, 128, 256)  # flashinfer.utils.determine_attention_backend on sm90


def _no_graph(use_cuda_graph: bool) -> None:
    if use_cuda_graph:
        raise RuntimeError("the emulated FlashInfer has no CUDA graphs")


def make_classes(library: Any) -> dict[str, Any]:
    """The names of `flashinfer` that SGLang's flashinfer backend imports; `library` is EmulatedFlashInfer."""

    class Ragged:
        def __init__(
            self, workspace: Tensor, kv_layout: str = "NHD", use_cuda_graph: bool = False, *, backend: str
        ) -> None:
            _no_graph(use_cuda_graph)
            self._make: Callable[[int], Any] = lambda head_dim: library.ragged_wrapper(
                workspace, kv_layout, _resolved(backend, head_dim)
            )
            self._wrapper: Any = None

        def begin_forward(
            self,
            qo_indptr: Tensor,
            kv_indptr: Tensor,
            num_qo_heads: int,
            num_kv_heads: int,
            head_dim_qk: int,
            head_dim_vo: int | None = None,
            **options: Any,
        ) -> None:
            options.pop("fixed_split_size", None)
            self._wrapper = self._make(head_dim_qk)
            self._wrapper.plan(qo_indptr, kv_indptr, num_qo_heads, num_kv_heads, head_dim_qk, head_dim_vo, **options)

        plan = begin_forward

        def forward_return_lse(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
            return self._wrapper.forward_return_lse(q, k, v, **_run_options(options))

        def forward(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
            out: Tensor = self.forward_return_lse(q, k, v, **options)[0]
            return out

    class Paged:
        is_cuda_graph_enabled = False

        def __init__(
            self, workspace: Tensor, kv_layout: str = "NHD", use_cuda_graph: bool = False, *, backend: str, **_: Any
        ) -> None:
            _no_graph(use_cuda_graph)
            self._make: Callable[[int], Any] = lambda head_dim: library.paged_wrapper(
                workspace, kv_layout, _resolved(backend, head_dim)
            )
            self._wrapper: Any = None

        def begin_forward(
            self,
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
            for name in ("non_blocking", "fixed_split_size", "prefix_len_ptr", "token_pos_in_items_ptr"):
                options.pop(name, None)
            for name in ("token_pos_in_items_len", "max_item_len_ptr"):
                options.pop(name, None)
            self._wrapper = self._make(head_dim_qk)
            self._wrapper.plan(
                qo_indptr,
                paged_kv_indptr,
                paged_kv_indices,
                _last_page_lens(paged_kv_indptr, paged_kv_last_page_len),
                num_qo_heads,
                num_kv_heads,
                head_dim_qk,
                page_size,
                **options,
            )

        plan = begin_forward

        def forward_return_lse(self, q: Tensor, paged_kv_cache: tuple[Tensor, Tensor], **options: Any) -> Any:
            return self._wrapper.forward_return_lse(q, _paged(paged_kv_cache), **_run_options(options))

        def forward(self, q: Tensor, paged_kv_cache: tuple[Tensor, Tensor], **options: Any) -> Tensor:
            out: Tensor = self.forward_return_lse(q, paged_kv_cache, **options)[0]
            return out

    class Decode:
        """BatchDecodeWithPagedKVCacheWrapper: one query row per request, which sees all its keys."""

        is_cuda_graph_enabled = False

        def __init__(
            self,
            workspace: Tensor,
            kv_layout: str = "NHD",
            use_cuda_graph: bool = False,
            use_tensor_cores: bool = False,
            **_: Any,
        ) -> None:
            _no_graph(use_cuda_graph)
            self._wrapper = library.paged_wrapper(workspace, kv_layout, "fa2")
            self._wrapper.fills_after_scale = not use_tensor_cores

        def begin_forward(
            self,
            indptr: Tensor,
            indices: Tensor,
            last_page_len: Tensor,
            num_qo_heads: int,
            num_kv_heads: int,
            head_dim: int,
            page_size: int,
            *,
            data_type: torch.dtype,
            q_data_type: torch.dtype,
            **options: Any,
        ) -> None:
            rows = torch.arange(indptr.numel(), dtype=torch.int32)
            self._wrapper.plan(
                rows,
                indptr,
                indices,
                last_page_len,
                num_qo_heads,
                num_kv_heads,
                head_dim,
                page_size,
                q_data_type=q_data_type,
                kv_data_type=data_type,
                disable_split_kv=bool(options.get("disable_split_kv")),
            )

        plan = begin_forward

        def forward(self, q: Tensor, paged_kv_cache: tuple[Tensor, Tensor], **options: Any) -> Tensor:
            out: Tensor = self._wrapper.forward_return_lse(q, _paged(paged_kv_cache), **_run_options(options))[0]
            return out

    def no_fast_plan(*args: Any, **kwargs: Any) -> None:
        del args, kwargs
        raise RuntimeError("the emulated FlashInfer has no CUDA graphs")

    return {
        "BatchPrefillWithRaggedKVCacheWrapper": Ragged,
        "BatchPrefillWithPagedKVCacheWrapper": Paged,
        "BatchDecodeWithPagedKVCacheWrapper": Decode,
        "fast_decode_plan": no_fast_plan,
    }


def _resolved(backend: str, head_dim: int) -> str:
    """ "auto" on sm90: fa3 for the head sizes that it has."""
    return ("fa3" if head_dim in FA3_HEAD_DIMS else "fa2") if backend == "auto" else backend


def _run_options(options: dict[str, Any]) -> dict[str, Any]:
    """Scales of an unquantised cache are None; the rest goes on."""
    if options.pop("k_scale", None) is not None or options.pop("v_scale", None) is not None:
        raise RuntimeError("the emulated FlashInfer takes no cache scales")
    return options


def _last_page_lens(indptr: Tensor, last_page_len: Tensor) -> Tensor:
    """SGLang passes 1 for a request without pages too; the kernel (page.cuh get_length) takes its length as 0."""
    return torch.where(indptr.diff() > 0, last_page_len, 0)


def _paged(cache: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """SGLang passes [slots, heads, dim] as a cache of page size 1 (flashinfer's _unpack_paged_kv_cache)."""
    k, v = (pool.unsqueeze(1) if pool.dim() == 3 else pool for pool in cache)
    return k, v


def import_backend(library: Any) -> None:
    """Import SGLang's flashinfer_backend once more, with the pretended FlashInfer in its sight and no one else's.

    The rest of SGLang was imported as on a machine without FlashInfer: quantisation, routing and
    communication take the paths they have then.
    """
    import sglang.srt.utils as utils

    modules, available = make_modules(library), utils.is_flashinfer_available
    kept = {name: sys.modules.pop(name, None) for name in modules}
    sys.modules.pop(BACKEND, None)
    sys.modules.update(modules)
    utils.is_flashinfer_available = lambda: True
    # Asked for when a backend is built: recent releases have the module, not the name.
    del kept["flashinfer.decode"]
    try:
        importlib.import_module(BACKEND)
    finally:
        utils.is_flashinfer_available = available
        for name, original in kept.items():
            if original is None:
                del sys.modules[name]
            else:
                sys.modules[name] = original


def make_modules(library: Any) -> dict[str, ModuleType]:
    """`flashinfer`, `flashinfer.cascade` and `flashinfer.decode`; SGLang's backend imports no other."""
    from importlib.machinery import ModuleSpec

    package, cascade = StandIn("flashinfer"), StandIn("flashinfer.cascade")
    decode = ModuleType("flashinfer.decode")  # without the names of old releases, for which SGLang asks
    decode.__spec__ = ModuleSpec(decode.__name__, None)
    for module in (package, cascade):
        module.__spec__ = ModuleSpec(module.__name__, None, is_package=True)
        module.__path__ = []
    package.__dict__.update(make_classes(library), __version__=library.version, cascade=cascade)
    cascade.__dict__["merge_state"] = library.merge_state
    return {"flashinfer": package, "flashinfer.cascade": cascade, "flashinfer.decode": decode}
