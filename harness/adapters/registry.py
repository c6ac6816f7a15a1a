"""Adapters by name: what there is, what can run here, and why the rest cannot.

Listing is cheap: it looks for files and metadata, and imports no kernel library and touches no CUDA.
A library is imported by the factory, in the process that runs the kernels.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fnmatch import fnmatch
from importlib import metadata
from pathlib import Path
from typing import Any

from harness.adapters.flash_attention import FlashAttention2, FlashAttention3, FlashAttention4
from harness.adapters.flashinfer import FlashInferPagedFa2, FlashInferPagedFa3, FlashInferSwaMerge
from harness.adapters.protocol import Adapter
from harness.adapters.torch_native import TorchFlex, TorchFlexEager, TorchSdpa, TorchVarlen, cannot_compile
from harness.emulation.flash_attention import EmulatedFlashAttention
from harness.emulation.flashinfer import EmulatedFlashInfer
from harness.emulation.hooks import Hooks
from harness.environment import gpu_ids
from harness.errors import UsageError
from harness.loading import is_file_spec, load_from_file

ENTRY_POINTS = "attn_harness.adapters"
NO_GPU = "no CUDA GPU here"


class AdapterError(UsageError):
    """An adapter that cannot be had, in one sentence."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One adapter.

    factory:  builds it; takes the emulation's hooks, which real adapters refuse
    why_not:  why it cannot run here, or None
    emulated: computed by harness/emulation, not by the library it is named after
    """

    name: str
    factory: Callable[[Hooks | None], Any]
    why_not: str | None = None
    emulated: bool = False


def available() -> list[Entry]:
    """Every adapter known here: real ones, emulated ones, and those of installed entry points."""
    return [*_flashinfer(), *_flash_attention(), *_torch(), *_sglang(), *_vllm(), *_entry_points()]


def match(patterns: Iterable[str]) -> list[Entry]:
    """Entries whose name matches one of the globs, in the registry's order."""
    wanted = tuple(patterns)
    return [entry for entry in available() if any(fnmatch(entry.name, pattern) for pattern in wanted)]


def load_adapter(spec: str, hooks: Hooks | None = None) -> Adapter:
    """The adapter of a registry name or of `path/to/file.py:ClassName`.

    `hooks` go into the kernels of an emulated adapter. Raises UsageError (AdapterError) with one
    sentence for an unknown name, a library that is not here, or a file that does not load.
    """
    if is_file_spec(spec):
        return _from_file(spec)
    entry = next((entry for entry in available() if entry.name == spec), None)
    if entry is None:
        raise AdapterError(f"there is no adapter {spec!r}; `attn-harness list adapters` names them.")
    if entry.why_not is not None:
        raise AdapterError(f"adapter {entry.name} cannot run here: {entry.why_not}.")
    adapter: Adapter = entry.factory(hooks)
    return adapter


def _from_file(spec: str) -> Adapter:
    made = load_from_file(spec, "adapter")
    if not callable(made):
        raise AdapterError(f"{spec} is {type(made).__name__}, not a class; name the adapter's class.")
    try:
        adapter: Adapter = made()
    except (Exception, SystemExit) as problem:
        raise AdapterError(
            f"{spec} raised {type(problem).__name__} when built without arguments: {problem}."
        ) from problem
    return adapter


# -- FlashInfer ----------------------------------------------------------------------------------
def _flashinfer() -> list[Entry]:
    why_not = _missing_gpu() or (None if _package_dir("flashinfer") else "flashinfer-python is not installed")
    classes = (FlashInferSwaMerge, FlashInferPagedFa2, FlashInferPagedFa3)

    def real(kind: Callable[[Any], Any]) -> Callable[[Hooks | None], Any]:
        def make(hooks: Hooks | None) -> Any:
            _refuse_hooks(hooks)
            from harness.adapters.flashinfer_library import FlashInfer

            return kind(FlashInfer())

        return make

    def emulated(kind: Callable[[Any], Any]) -> Callable[[Hooks | None], Any]:
        return lambda hooks: kind(EmulatedFlashInfer(hooks=hooks))

    return [Entry(kind.name, real(kind), why_not) for kind in classes] + [
        Entry(f"{kind.name}@emulated", emulated(kind), emulated=True) for kind in classes
    ]


# -- FlashAttention ------------------------------------------------------------------------------
def _flash_attention() -> list[Entry]:
    generations: tuple[tuple[Any, str, str], ...] = (
        (FlashAttention4, "fa4", "load_flash_attention_4"),
        (FlashAttention3, "fa3", "load_flash_attention_3"),
        (FlashAttention2, "fa2", "load_flash_attention_2"),
    )

    def real(kind: Callable[[Any], Any], loader: str) -> Callable[[Hooks | None], Any]:
        def make(hooks: Hooks | None) -> Any:
            _refuse_hooks(hooks)
            from harness.adapters import flash_attention_library

            return kind(getattr(flash_attention_library, loader)())

        return make

    def emulated(kind: Callable[[Any], Any], backend: str) -> Callable[[Hooks | None], Any]:
        return lambda hooks: kind(EmulatedFlashAttention(backend, hooks))

    return [
        Entry(kind.name, real(kind, loader), _missing_gpu() or missing_flash_attention(backend))
        for kind, backend, loader in generations
    ] + [Entry(f"{kind.name}@emulated", emulated(kind, backend), emulated=True) for kind, backend, _ in generations]


def missing_flash_attention(backend: str) -> str | None:
    """None if a file of some build is there; whether it loads is the factory's to find out."""
    flash_attn, vllm = _package_dir("flash_attn"), _package_dir("vllm")
    if backend == "fa4":
        return (
            None if flash_attn and (flash_attn / "cute" / "interface.py").is_file() else "flash-attn-4 is not installed"
        )
    if backend == "fa3":
        if _found("flash_attn_interface") or _package_dir("sgl_kernel") or _vllm_extension(vllm, 3):
            return None
        return "none of flash_attn_interface, sgl_kernel and vllm's FlashAttention 3 is installed"
    if (flash_attn and _found("flash_attn_2_cuda")) or _vllm_extension(vllm, 2):
        return None
    return "neither flash-attn 2 nor vllm's FlashAttention 2 is installed"


def _vllm_extension(vllm: Path | None, generation: int) -> bool:
    return vllm is not None and any((vllm / "vllm_flash_attn").glob(f"_vllm_fa{generation}_C*.so"))


# -- SGLang's backends ---------------------------------------------------------------------------
def _sglang() -> list[Entry]:
    from harness.adapters.sglang import Libraries, sglang_entries

    def real_fa3() -> Any:
        from harness.adapters.flash_attention_library import load_flash_attention_3

        return load_flash_attention_3()

    libraries = Libraries(
        has_gpu=bool(gpu_ids()),
        fa3_missing=missing_flash_attention("fa3"),
        flash_attention_3=real_fa3,
        emulated_flash_attention_3=lambda: EmulatedFlashAttention("fa3"),
        emulated_flashinfer=EmulatedFlashInfer,
    )

    def factory(make: Callable[[], Any]) -> Callable[[Hooks | None], Any]:
        def build(hooks: Hooks | None) -> Any:
            _refuse_hooks(hooks)
            return make()

        return build

    return [Entry(e.name, factory(e.make), e.why_not, e.emulated) for e in sglang_entries(libraries)]


# -- vLLM's backends -----------------------------------------------------------------------------
def _vllm() -> list[Entry]:
    from harness.adapters.vllm import Emulations, vllm_entries

    def factory(make: Callable[[], Any]) -> Callable[[Hooks | None], Any]:
        def build(hooks: Hooks | None) -> Any:
            _refuse_hooks(hooks)
            return make()

        return build

    emulations = Emulations(lambda: EmulatedFlashAttention("fa3"), EmulatedFlashInfer)
    listed = vllm_entries(has_gpu=bool(gpu_ids()), emulations=emulations)
    return [Entry(e.name, factory(e.make), e.why_not, e.emulated) for e in listed]


# -- torch ---------------------------------------------------------------------------------------
def _torch() -> list[Entry]:
    def real(kind: Callable[[], Any]) -> Callable[[Hooks | None], Any]:
        def make(hooks: Hooks | None) -> Any:
            _refuse_hooks(hooks)
            return kind()

        return make

    why_not = {TorchVarlen.name: _missing_gpu(), TorchFlex.name: _missing_gpu() and cannot_compile()}
    kinds = (TorchVarlen, TorchSdpa, TorchFlex, TorchFlexEager)
    return [Entry(kind.name, real(kind), why_not.get(kind.name)) for kind in kinds]


# -- outside -------------------------------------------------------------------------------------
def _entry_points() -> list[Entry]:
    def factory(point: metadata.EntryPoint) -> Callable[[Hooks | None], Any]:
        def make(hooks: Hooks | None) -> Any:
            _refuse_hooks(hooks)
            try:
                return point.load()()
            except (Exception, SystemExit) as problem:
                raise AdapterError(
                    f"adapter {point.name} of {point.value} raised {type(problem).__name__}: {problem}."
                ) from problem

        return make

    return [Entry(point.name, factory(point)) for point in metadata.entry_points(group=ENTRY_POINTS)]


def _refuse_hooks(hooks: Hooks | None) -> None:
    if hooks is not None:
        raise AdapterError("this fault acts inside emulated kernels; choose an adapter whose name ends in @emulated.")


# -- looking without importing -------------------------------------------------------------------
def _missing_gpu() -> str | None:
    return None if gpu_ids() else NO_GPU


def _found(module: str) -> bool:
    """True if a top-level module is there, by a search that imports nothing."""
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _package_dir(package: str) -> Path | None:
    """The folder of a top-level package, or None; a namespace package has one too."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return None
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations)))
