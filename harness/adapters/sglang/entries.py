"""The SGLang adapters that this environment can run, and why it cannot run the others."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cases.schema import Mode
from harness.adapters.capabilities import Capabilities, Rule
from harness.adapters.flash_attention import FlashAttentionLibrary
from harness.adapters.sglang.adapter import COMMON_RULES, SglangAdapter, equal_replay
from harness.adapters.sglang.compat import compat_for
from harness.adapters.sglang.runtime import KernelSource
from harness.adapters.sglang.tree import SglangUnavailable, Tree, find_tree

HALF = ("bfloat16", "float16")
ALL_MODES = tuple(Mode)
NO_VERIFY = (Mode.EXTEND, Mode.DECODE, Mode.DRAFT_EXTEND_V2)
FLASHINFER_HEAD_DIMS = (64, 128, 256)


@dataclass(frozen=True, slots=True)
class SglangEntry:
    """name, why it cannot run here (or None), and what builds it."""

    name: str
    why_not: str | None
    make: Callable[[], SglangAdapter]


@dataclass(frozen=True, slots=True)
class Libraries:
    """How the harness gets at kernels: an installed FlashAttention 3, and the emulations.

    has_gpu: whether the process will see one; fa3_missing: why there is no FlashAttention 3, or None.
    """

    has_gpu: bool
    fa3_missing: str | None
    flash_attention_3: Callable[[], FlashAttentionLibrary]
    emulated_flash_attention_3: Callable[[], FlashAttentionLibrary]
    emulated_flashinfer: Callable[[], Any]


def found_tree() -> tuple[Tree | None, str | None]:
    """The tree and None, or None and why there is none that can be used."""
    try:
        tree = find_tree()
        compat_for(tree)
    except SglangUnavailable as problem:
        return None, str(problem).rstrip(".")
    return tree, None


def sglang_entries(libraries: Libraries) -> list[SglangEntry]:
    """Every SGLang adapter; on a machine without a GPU, those that run there, over emulated kernels."""
    _, why_not = found_tree()
    gpu = libraries.has_gpu
    source = KernelSource(
        emulated=not gpu,
        flash_attention=(
            (libraries.flash_attention_3 if libraries.fa3_missing is None else None)
            if gpu
            else libraries.emulated_flash_attention_3
        ),
        flashinfer=None if gpu else libraries.emulated_flashinfer,
    )
    no_flashinfer = None if not gpu or _installed("flashinfer") else "flashinfer-python is not installed"
    no_fa3 = libraries.fa3_missing if gpu else None
    no_gpu = None if gpu else "SGLang's Triton kernels need a CUDA GPU"

    def entry(name: str, backend: str, also: str | None, capabilities: Capabilities, **options: Any) -> SglangEntry:
        return SglangEntry(name, why_not or also, lambda: SglangAdapter(name, backend, source, capabilities, **options))

    flashinfer = Capabilities(
        dtypes=HALF,
        head_dims=FLASHINFER_HEAD_DIMS,
        empty_extends=False,
        graph=gpu,
        rules=_rules(flashinfer_graph, equal_replay),
    )
    fa3 = Capabilities(dtypes=HALF, sinks=True, graph=True, empty_extends=False, rules=_rules(verify_equal_capture))
    return [
        entry(
            "sglang-flashinfer",
            "flashinfer",
            no_flashinfer,
            flashinfer,
            merge_legs=2,
            packages=("flashinfer-python",),
        ),
        entry(
            "sglang-flashinfer-paged",
            "flashinfer",
            no_flashinfer,
            flashinfer,
            environment={"SGLANG_FLASHINFER_USE_PAGED": "1"},
            packages=("flashinfer-python",),
        ),
        entry("sglang-fa3", "fa3", no_fa3, fa3),
        entry(
            "sglang-fa3@prefix-seq-lens",
            "fa3",
            no_fa3,
            Capabilities(modes=(Mode.DRAFT_EXTEND_V2,), dtypes=HALF, empty_extends=False, rules=_rules()),
            prefix_seq_lens=True,
        ),
        entry(
            "sglang-triton",
            "triton",
            no_gpu,
            Capabilities(
                dtypes=HALF,
                sinks=True,
                graph=True,
                head_dim_vo_differs=True,
                empty_extends=False,
                rules=_rules(equal_replay),
            ),
            merge_legs=1,
        ),
        entry(
            "sglang-torch-native",
            "torch_native",
            None,
            Capabilities(
                modes=NO_VERIFY,
                dtypes=(*HALF, "float32"),
                head_dim_vo_differs=True,
                empty_extends=False,
                rules=_rules(),
            ),
        ),
        entry(
            "sglang-flex",
            "flex_attention",
            None,
            Capabilities(modes=NO_VERIFY, dtypes=(*HALF, "float32"), empty_extends=False, rules=_rules()),
        ),
    ]


def flashinfer_graph(case: Any) -> str | None:
    """flashinfer_backend.py raises ValueError for any other mode in capture (0.5.12, 0.5.13)."""
    if case.execution.uses_graph and case.mode is Mode.DRAFT_EXTEND_V2:
        return "SGLang's flashinfer backend captures no graph of DRAFT_EXTEND_V2"
    return None


def verify_equal_capture(case: Any) -> str | None:
    """TARGET_VERIFY and DECODE replay the row counts of the capture; DRAFT_EXTEND_V2 takes others on fa3."""
    return None if case.mode is Mode.DRAFT_EXTEND_V2 else equal_replay(case)


def _rules(*more: Rule) -> tuple[Rule, ...]:
    return (*COMMON_RULES, *more)


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False
