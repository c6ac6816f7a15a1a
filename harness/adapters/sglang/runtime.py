"""SGLang in this process: imported once, beside its stand-ins, with the kernels it is to use."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from harness.adapters.flash_attention import FlashAttentionLibrary
from harness.adapters.sglang import standins
from harness.adapters.sglang.compat import compat_for
from harness.adapters.sglang.compat.base import Compat
from harness.adapters.sglang.flash_attn_shim import FlashAttnShim
from harness.adapters.sglang.flashinfer_module import import_backend
from harness.adapters.sglang.pretend import pretend_cuda, use_triton_interpreter
from harness.adapters.sglang.setup import store_with_index_put
from harness.adapters.sglang.tree import Tree, find_tree

BACKENDS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "flashinfer": ("flashinfer_backend", "FlashInferAttnBackend", {}),
    "fa3": ("flashattention_backend", "FlashAttentionBackend", {"fa_impl_ver": 3}),
    "triton": ("triton_backend", "TritonAttnBackend", {}),
    "torch_native": ("torch_native_backend", "TorchNativeAttnBackend", {}),
    "flex_attention": ("torch_flex_backend", "TorchFlexAttnBackend", {}),
}

TORCH_ALONE = ("torch_native", "flex_attention")


@dataclass(frozen=True, slots=True)
class KernelSource:
    """Where SGLang's kernels come from.

    emulated:         True on a machine without a GPU: CUDA is pretended
    flash_attention:  gives the library behind sgl_kernel.flash_attn, or None where it is not wanted
    flashinfer:       gives the emulated FlashInfer, or None for the installed one
    """

    emulated: bool
    flash_attention: Callable[[], FlashAttentionLibrary] | None = None
    flashinfer: Callable[[], Any] | None = None


class Runtime:
    """The imported SGLang. Make it with `runtime`; a process has one."""

    def __init__(self, source: KernelSource) -> None:
        self.source = source
        self.tree: Tree = find_tree()
        self.compat: Compat = compat_for(self.tree)
        self.shim: FlashAttnShim | None = None
        # Before the stand-ins: a search for FlashAttention 3 must not find the shim that it is to fill.
        if source.flash_attention is not None and not _has_own_flash_attn():
            self.shim = FlashAttnShim(source.flash_attention())
        if source.emulated:
            use_triton_interpreter()
            os.environ["SGLANG_IS_FLASHINFER_AVAILABLE"] = "false"
        with self._surroundings():
            self.stand_ins = standins.install(also=("flashinfer",) if source.emulated else ())
            if self.shim is not None:
                self.shim.fill(importlib.import_module("sgl_kernel.flash_attn"))
            self.compat.start()
            store_with_index_put(self.shim)
            if source.flashinfer is not None:
                # Imported first, so that nothing but the backend itself is imported with FlashInfer in sight.
                importlib.import_module("sglang.srt.layers.attention.flashinfer_backend")
                import_backend(source.flashinfer())

    @contextmanager
    def _surroundings(self) -> Iterator[None]:
        if self.source.emulated:
            with pretend_cuda():
                yield
        else:
            yield

    @contextmanager
    def at_work(self, name: str, backend: Any = None) -> Iterator[None]:
        """Where SGLang's code runs: CUDA pretended if need be, the backend in its context.

        Backends of torch alone get the CPU as it is once they are built: torch.compile looks behind pretences.
        """
        as_it_is = name in TORCH_ALONE and backend is not None
        with torch.no_grad(), nullcontext() if as_it_is else self._surroundings(), ExitStack() as stack:
            if backend is not None:
                stack.enter_context(self.compat.at_work(backend))
            yield

    def make_backend(self, name: str, runner: Any) -> Any:
        module, kind, options = BACKENDS[name]
        imported = importlib.import_module(f"sglang.srt.layers.attention.{module}")
        return getattr(imported, kind)(runner, **options)


_RUNTIME: Runtime | None = None


def runtime(source: KernelSource) -> Runtime:
    """The process's SGLang, imported on the first call. Raises SglangUnavailable."""
    global _RUNTIME
    if _RUNTIME is None:
        _RUNTIME = Runtime(source)
    if _RUNTIME.source.emulated != source.emulated:
        raise RuntimeError("this process runs SGLang on real kernels already; emulated ones need another process")
    return _RUNTIME


def _has_own_flash_attn() -> bool:
    """True if the real sgl_kernel, with its own FlashAttention 3, is installed."""
    if "sgl_kernel" in standins.missing():
        return False
    return importlib.util.find_spec("sgl_kernel.flash_attn") is not None and "sgl_kernel" not in sys.modules
