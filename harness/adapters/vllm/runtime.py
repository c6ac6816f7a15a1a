"""vLLM in this process: imported once, beside its stand-ins, with the kernels it is to use."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from harness.adapters.flash_attention import FlashAttentionLibrary
from harness.adapters.sglang.pretend import pretend_cuda
from harness.adapters.vllm import standins
from harness.adapters.vllm.flash_attn_shim import FlashAttnShim, no_schedule
from harness.adapters.vllm.flashinfer_module import in_sight
from harness.adapters.vllm.tree import Tree, find_tree

BACKENDS = "vllm.v1.attention.backends"
FLASH_ATTN, FLASHINFER = "flash_attn", "flashinfer"  # modules of BACKENDS
BACKEND_CLASSES = {FLASH_ATTN: "FlashAttentionBackend", FLASHINFER: "FlashInferBackend"}
CACHE_WRITE = (
    "reshape_and_cache_flash(Tensor key, Tensor value, Tensor(a!) key_cache, Tensor(b!) value_cache, "
    "Tensor slot_mapping, str kv_cache_dtype, Tensor k_scale, Tensor v_scale) -> ()"
)


@dataclass(frozen=True, slots=True)
class Emulations:
    """What gives the emulated kernels of a machine without a GPU, a backend each."""

    flash_attention: Callable[[], FlashAttentionLibrary]
    flashinfer: Callable[[], Any]


class Runtime:
    """The imported vLLM. Make it with `runtime`; a process has one.

    emulations: the kernels of a machine without a GPU; None uses vLLM's own build and the installed FlashInfer
    """

    def __init__(self, emulations: Emulations | None) -> None:
        self.emulations = emulations
        self.tree: Tree = find_tree()
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
        if emulations is not None:  # 394 MiB for each builder, of which the emulation uses nothing
            os.environ.setdefault("VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE", str(1 << 16))
        self.has_compiled = any((self.tree.root / "vllm").glob("_C*.so")) and emulations is None
        compiled = () if self.has_compiled else standins.COMPILED
        if emulations is not None:
            compiled = (*compiled, "vllm.vllm_flash_attn._vllm_fa3_C")
        self._backends: dict[str, Any] = {}
        self._cache_write: Any = None  # an operator lives as long as its library
        with self.surroundings():
            importlib.import_module("transformers")  # it must not see a stand-in
            self.stand_ins = standins.install(compiled)
            platforms = importlib.import_module("vllm.platforms")
            if emulations is not None:
                platforms.__dict__["_current_platform"] = importlib.import_module(
                    "vllm.platforms.cuda"
                ).NonNvmlCudaPlatform()

    def backend(self, name: str) -> Any:
        """vLLM's AttentionBackend class of FLASH_ATTN or FLASHINFER, its module imported on the first call."""
        if name not in self._backends:
            with self.surroundings():
                load = {FLASH_ATTN: self._flash_attn, FLASHINFER: self._flashinfer}[name]
                self._backends[name] = getattr(load(), BACKEND_CLASSES[name])
        return self._backends[name]

    @contextmanager
    def surroundings(self) -> Iterator[None]:
        """Where vLLM's code runs: CUDA pretended without a GPU."""
        with torch.no_grad():
            if self.emulations is not None:
                with pretend_cuda():
                    yield
            else:
                yield

    # -- inside --------------------------------------------------------------------------------
    def _flash_attn(self) -> Any:
        module = importlib.import_module(f"{BACKENDS}.flash_attn")
        if self.emulations is not None:
            module.__dict__["flash_attn_varlen_func"] = FlashAttnShim(self.emulations.flash_attention())
            module.__dict__["get_scheduler_metadata"] = no_schedule
        if not self.has_compiled:
            module.__dict__["reshape_and_cache_flash"] = store_with_index_put
        return module

    def _flashinfer(self) -> Any:
        """This backend calls the cache write as an operator of torch; the others by a function's name."""
        if not self.has_compiled:
            made: Any = torch.library
            self._cache_write = made.Library("_C_cache_ops", "FRAGMENT")
            self._cache_write.define(CACHE_WRITE)
            self._cache_write.impl("reshape_and_cache_flash", store_with_index_put, "CompositeExplicitAutograd")
        where = f"{BACKENDS}.flashinfer"
        if self.emulations is None:
            return importlib.import_module(where)
        importlib.import_module("vllm.utils.flashinfer")  # it must see FlashInfer as it is here
        with in_sight(self.emulations.flashinfer()):
            return importlib.import_module(where)


_RUNTIME: Runtime | None = None


def runtime(emulations: Emulations | None) -> Runtime:
    """The process's vLLM, imported on the first call. Raises VllmUnavailable."""
    global _RUNTIME
    if _RUNTIME is None:
        _RUNTIME = Runtime(emulations)
    if (_RUNTIME.emulations is None) != (emulations is None):
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
