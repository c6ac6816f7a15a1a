"""The vLLM adapters that this environment can run, and why it cannot run the others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from harness.adapters.flash_attention import FlashAttentionLibrary
from harness.adapters.vllm.adapter import CAPABILITIES, VllmFlashAttentionAdapter
from harness.adapters.vllm.runtime import runtime
from harness.adapters.vllm.tree import Tree, VllmUnavailable, find_tree
from harness.errors import UsageError

NAME = "vllm-flash-attn"


@dataclass(frozen=True, slots=True)
class VllmEntry:
    """name, why it cannot run here (or None), whether its kernels are emulated, and what builds it."""

    name: str
    why_not: str | None
    emulated: bool
    make: Callable[[], VllmFlashAttentionAdapter]


def found_tree() -> tuple[Tree | None, str | None]:
    """The tree and None, or None and why there is none that can be used."""
    try:
        return find_tree(), None
    except VllmUnavailable as problem:
        return None, str(problem).rstrip(".")


def vllm_entries(*, has_gpu: bool, emulated_flash_attention_3: Callable[[], FlashAttentionLibrary]) -> list[VllmEntry]:
    """vLLM's FlashAttention backend with FlashAttention 3 and 2, and, without a GPU, over the emulation."""
    tree, why_not = found_tree()
    no_gpu = None if has_gpu else f"no CUDA GPU here (without one: {NAME}@emulated)"

    def without(generation: int) -> str | None:
        if tree is None or any((tree.root / "vllm" / "vllm_flash_attn").glob(f"_vllm_fa{generation}_C*.so")):
            return None
        return f"the vLLM tree has no FlashAttention {generation} extension"

    def make(
        name: str, library: Callable[[], FlashAttentionLibrary] | None, version: int | None
    ) -> Callable[[], VllmFlashAttentionAdapter]:
        def build() -> VllmFlashAttentionAdapter:
            import_vllm(library)
            capabilities = CAPABILITIES if version is None else replace(CAPABILITIES, sinks=False)
            return VllmFlashAttentionAdapter(name, library, version, capabilities)

        return build

    emulated = emulated_flash_attention_3
    also = "on a machine with a GPU the real kernels are used" if has_gpu else None
    return [
        VllmEntry(NAME, why_not or no_gpu or without(3), False, make(NAME, None, None)),
        VllmEntry(f"{NAME}@fa2", why_not or no_gpu or without(2), False, make(f"{NAME}@fa2", None, 2)),
        VllmEntry(f"{NAME}@emulated", why_not or also, True, make(f"{NAME}@emulated", emulated, None)),
    ]


def import_vllm(library: Callable[[], FlashAttentionLibrary] | None) -> None:
    """Import vLLM now, so that a failure is told as an environment's, not as a case's. Raises UsageError."""
    try:
        runtime(library)
    except Exception as problem:
        text = (str(problem).strip().splitlines() or [type(problem).__name__])[0]
        raise UsageError(f"vLLM cannot be imported here: {type(problem).__name__}: {text}") from problem
