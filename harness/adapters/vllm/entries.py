"""The vLLM adapters that this environment can run, and why it cannot run the others."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, replace

from cases.schema import AttentionCase
from harness.adapters.capabilities import Capabilities
from harness.adapters.flashinfer_library import FlashInfer, is_hopper
from harness.adapters.flashinfer_modules import module_name
from harness.adapters.sglang.entries import flashinfer_traits
from harness.adapters.sglang.runtime import KernelSource
from harness.adapters.vllm.adapter import FLASH_ATTENTION, FLASHINFER_CAPABILITIES, VllmAdapter
from harness.adapters.vllm.runtime import FLASH_ATTN, FLASHINFER, Emulations, runtime
from harness.adapters.vllm.tree import Tree, VllmUnavailable, find_tree
from harness.errors import UsageError

NAME = "vllm-flash-attn"
FLASHINFER_NAME = "vllm-flashinfer"
ON_REAL_KERNELS = "on a machine with a GPU the real kernels are used"


@dataclass(frozen=True, slots=True)
class VllmEntry:
    """name, why it cannot run here (or None), whether its kernels are emulated, and what builds it."""

    name: str
    why_not: str | None
    emulated: bool
    make: Callable[[], VllmAdapter]


def found_tree() -> tuple[Tree | None, str | None]:
    """The tree and None, or None and why there is none that can be used."""
    try:
        return find_tree(), None
    except VllmUnavailable as problem:
        return None, str(problem).rstrip(".")


def vllm_entries(*, has_gpu: bool, emulations: Emulations) -> list[VllmEntry]:
    """vLLM's FlashAttention (3 and 2) and FlashInfer backends, and, without a GPU, over the emulations."""
    tree, why_not = found_tree()

    def no_gpu(name: str) -> str | None:
        return None if has_gpu else f"no CUDA GPU here (without one: {name}@emulated)"

    def without(generation: int) -> str | None:
        if tree is None or any((tree.root / "vllm" / "vllm_flash_attn").glob(f"_vllm_fa{generation}_C*.so")):
            return None
        return f"the vLLM tree has no FlashAttention {generation} extension"

    def flash_attn(name: str, source: Emulations | None, version: int | None = None) -> Callable[[], VllmAdapter]:
        def build() -> VllmAdapter:
            import_vllm(FLASH_ATTN, source)
            capabilities = FLASH_ATTENTION if version is None else replace(FLASH_ATTENTION, sinks=False)
            return VllmAdapter(name, FLASH_ATTN, source, capabilities, flash_attn_version=version)

        return build

    def flashinfer(name: str, source: Emulations | None) -> Callable[[], VllmAdapter]:
        def build() -> VllmAdapter:
            import_vllm(FLASHINFER, source)
            packages = () if source is not None else ("flashinfer-python",)
            capabilities = FLASHINFER_CAPABILITIES if source is not None else built_ahead(FLASHINFER_CAPABILITIES)
            traits = flashinfer_traits(KernelSource(emulated=source is not None))
            return VllmAdapter(name, FLASHINFER, source, capabilities, packages=packages, traits=traits)

        return build

    emulated, also = emulations, ON_REAL_KERNELS if has_gpu else None
    no_flashinfer = None if _installed("flashinfer") else "flashinfer-python is not installed"
    fa2, of_fa, of_fi = f"{NAME}@fa2", f"{NAME}@emulated", f"{FLASHINFER_NAME}@emulated"
    real = flashinfer(FLASHINFER_NAME, None)
    return [
        VllmEntry(NAME, why_not or no_gpu(NAME) or without(3), False, flash_attn(NAME, None)),
        VllmEntry(fa2, why_not or no_gpu(NAME) or without(2), False, flash_attn(fa2, None, 2)),
        VllmEntry(of_fa, why_not or also, True, flash_attn(of_fa, emulated)),
        VllmEntry(FLASHINFER_NAME, why_not or no_gpu(FLASHINFER_NAME) or no_flashinfer, False, real),
        VllmEntry(of_fi, why_not or also, True, flashinfer(of_fi, emulated)),
    ]


def import_vllm(backend: str, emulations: Emulations | None) -> None:
    """Import vLLM now, so that a failure is told as an environment's, not as a case's. Raises UsageError."""
    try:
        runtime(emulations).backend(backend)
    except Exception as problem:
        text = (str(problem).strip().splitlines() or [type(problem).__name__])[0]
        raise UsageError(f"vLLM cannot be imported here: {type(problem).__name__}: {text}") from problem


def built_ahead(capabilities: Capabilities) -> Capabilities:
    """Less what no module was built for, where FlashInfer may not compile (FLASHINFER_DISABLE_JIT).

    Decodes run on fa2; prefills, a first token among them, on fa3 where the GPU is a Hopper.
    """
    prebuilt = FlashInfer().prebuilt
    if prebuilt is None:
        return capabilities
    for_prefills = "fa3" if is_hopper() else "fa2"

    def rule(case: AttentionCase) -> str | None:
        decodes = {r.extend_len == 1 and (r.prefix_len > 0 or case.max_extend_len == 1) for r in case.requests}
        kernels = {"fa2" if is_decode else for_prefills for is_decode in decodes}
        masks = (case.window_left is not None, case.logits_soft_cap is not None)
        missing = {module_name(case.dtype, case.head_dim_qk, *masks, kernel) for kernel in kernels} - prebuilt
        return f"JIT is disabled and {min(missing)} is not prebuilt" if missing else None

    return replace(capabilities, rules=(*capabilities.rules, rule))


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False
