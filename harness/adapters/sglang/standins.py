"""Stand-ins for what SGLang imports and attention never calls.

A stand-in takes the place of a package only where the package is missing. Whatever is asked of it at
import is a function that raises when it is called, so none can compute attention by accident. The one
exception is declared: `sgl_kernel.flash_attn`, which harness/adapters/sglang/kernels.py fills with an
installed FlashAttention 3 (or its emulation).

Also here: the few switches that let a release load beside newer libraries.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch

STAND_INS = {
    "sgl_kernel": "SGLang's own kernels (quantisation, routing, sampling); sgl_kernel.flash_attn is a declared shim",
    "deep_gemm": "fp8 matrix products",
    "deep_ep": "expert-parallel communication",
    "flash_mla": "MLA kernels; MLA is outside the scope here",
    "torch_memory_saver": "releasing weights in training loops",
    "uvicorn": "the HTTP server",
    "torchvision": "image decoding",
    "xgrammar": "grammars of structured output (imported by 0.5.16 to 0.5.20)",
}


class _Whatever:
    """A value whose attributes and calls give more of the same (sgl_kernel.scalar_type.scalar_types)."""

    def __getattr__(self, name: str) -> _Whatever:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Whatever()

    def __call__(self, *args: object, **kwargs: object) -> _Whatever:
        del args, kwargs
        return _Whatever()


class _StandInType(type):
    """A class that can be subclassed and asked for members (an enumeration's, say)."""

    def __getattr__(cls, name: str) -> _Whatever:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Whatever()


def _any_schema(cls: type, source: object, handler: object) -> Any:
    """Lets a pydantic model of SGLang's HTTP protocol name a stand-in's class as a field's type."""
    del cls, source, handler
    from pydantic_core import core_schema

    return core_schema.any_schema()


class StandIn(ModuleType):
    """A module that has every name: a class where the name is capitalised, else a function; neither can be called."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name == "scalar_types":
            return _Whatever()
        where = f"{self.__name__}.{name}"

        def refuse(*args: object, **kwargs: object) -> None:
            del args, kwargs
            raise RuntimeError(f"{where} is a stand-in and was called; install the real package")

        if name[:1].isupper() and not name.isupper():
            return _StandInType(
                name, (), {"__init__": refuse, "__get_pydantic_core_schema__": classmethod(_any_schema)}
            )
        refuse.__name__ = name
        return refuse


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, packages: frozenset[str]) -> None:
        self.packages = packages

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        del path, target
        if fullname.split(".")[0] not in self.packages:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        module = StandIn(spec.name)
        module.__path__ = []
        module.__dict__["__version__"] = "99.0"  # SGLang asks for a least version of sgl_kernel
        return module

    def exec_module(self, module: ModuleType) -> None:
        del module


def missing() -> tuple[str, ...]:
    """The packages of STAND_INS that are not installed, so that a stand-in is used (or would be)."""
    return tuple(name for name in STAND_INS if not is_real(name))


def is_real(name: str) -> bool:
    """Whether a package can be imported that is no stand-in."""
    if isinstance(sys.modules.get(name), StandIn):
        return False
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return False
    return spec is not None and not isinstance(spec.loader, Finder)


def install(also: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Put stand-ins where packages are missing; returns their names. Call once, before importing sglang.

    `also`: more packages, for a machine without a GPU."""
    os.environ.setdefault("SGLANG_USE_SGL_FA3_KERNEL", "1")  # fa3 from sgl_kernel.flash_attn, not a download
    _let_transformers_register_twice()  # imports transformers: it must not see a stand-in for torchvision
    names = (*missing(), *also)
    sys.meta_path.append(Finder(frozenset(names)))
    if "sgl_kernel" in names:
        _let_missing_operators_be_described()
        # Programmatic dependent launch is asked for by SGLang's own kernels alone.
        importlib.import_module("sgl_kernel.utils").__dict__["is_arch_support_pdl"] = lambda *_, **__: False
    return names


def _let_transformers_register_twice() -> None:
    """SGLang 0.5.12 and 0.5.13 register configurations (qwen3_asr) that newer transformers ship themselves."""
    import transformers

    for name in ("AutoConfig", "AutoProcessor", "AutoTokenizer", "AutoImageProcessor", "AutoModel"):
        auto = getattr(transformers, name, None)
        if auto is None or not hasattr(auto, "register"):
            continue
        auto.register = staticmethod(_exist_ok(auto.register))


def _let_missing_operators_be_described() -> None:
    """At import SGLang describes operators of sgl_kernel to torch.compile; without sgl_kernel there are none."""
    register = torch.library.register_fake

    def tolerant(op: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(op, str) and op.startswith("sgl_kernel::") and not hasattr(torch.ops.sgl_kernel, op[12:]):
            return lambda function: function
        return register(op, *args, **kwargs)

    torch.library.register_fake = tolerant


def _exist_ok(register: Any) -> Any:
    def registering(*args: Any, **kwargs: Any) -> Any:
        return register(*args, **{**kwargs, "exist_ok": True})

    return registering
