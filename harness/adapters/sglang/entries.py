"""The SGLang adapters that this environment can run, and why it cannot run the others."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from cases.schema import Mode
from harness.adapters.capabilities import Capabilities, Rule
from harness.adapters.flash_attention import FlashAttentionLibrary
from harness.adapters.sglang.adapter import COMMON_RULES, SglangAdapter, equal_replay
from harness.adapters.sglang.compat import compat_for
from harness.adapters.sglang.runtime import KernelSource, runtime
from harness.adapters.sglang.tree import SglangUnavailable, Tree, find_tree
from harness.errors import UsageError

HALF = ("bfloat16", "float16")

NO_VERIFY = (Mode.EXTEND, Mode.DECODE, Mode.DRAFT_EXTEND_V2)
FLASHINFER_HEAD_DIMS = (64, 128, 256)


@dataclass(frozen=True, slots=True)
class SglangEntry:
    """name, why it cannot run here (or None), whether its kernels are emulated, and what builds it."""

    name: str
    why_not: str | None
    emulated: bool
    make: Callable[[], SglangAdapter]


@dataclass(frozen=True, slots=True)
class Spec:
    """One adapter. anywhere: torch alone computes, so that it runs with and without a GPU."""

    name: str
    backend: str
    capabilities: Capabilities
    anywhere: bool = False
    can_be_emulated: bool = False
    merge_legs: int = 1
    prefix_seq_lens: bool = False
    environment: tuple[tuple[str, str], ...] = ()
    packages: tuple[str, ...] = ()


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


FLASHINFER = Capabilities(
    dtypes=HALF,
    head_dims=FLASHINFER_HEAD_DIMS,
    empty_extends=False,
    graph=True,
    rules=_rules(flashinfer_graph, equal_replay),
)
SPECS = (
    Spec(
        "sglang-flashinfer",
        "flashinfer",
        FLASHINFER,
        can_be_emulated=True,
        merge_legs=2,
        packages=("flashinfer-python",),
    ),
    Spec(
        "sglang-flashinfer-paged",
        "flashinfer",
        FLASHINFER,
        can_be_emulated=True,
        environment=(("SGLANG_FLASHINFER_USE_PAGED", "1"),),
        packages=("flashinfer-python",),
    ),
    Spec(
        "sglang-fa3",
        "fa3",
        Capabilities(dtypes=HALF, sinks=True, graph=True, empty_extends=False, rules=_rules(verify_equal_capture)),
        can_be_emulated=True,
    ),
    Spec(
        "sglang-fa3@prefix-seq-lens",
        "fa3",
        Capabilities(modes=(Mode.DRAFT_EXTEND_V2,), dtypes=HALF, empty_extends=False, rules=_rules()),
        can_be_emulated=True,
        prefix_seq_lens=True,
    ),
    Spec(
        "sglang-triton",
        "triton",
        Capabilities(
            dtypes=HALF,
            sinks=True,
            graph=True,
            head_dim_vo_differs=True,
            empty_extends=False,
            rules=_rules(equal_replay),
        ),
    ),
    Spec(
        "sglang-torch-native",
        "torch_native",
        Capabilities(
            modes=NO_VERIFY, dtypes=(*HALF, "float32"), head_dim_vo_differs=True, empty_extends=False, rules=_rules()
        ),
        anywhere=True,
    ),
    Spec(
        "sglang-flex",
        "flex_attention",
        Capabilities(modes=NO_VERIFY, dtypes=(*HALF, "float32"), empty_extends=False, rules=_rules()),
        anywhere=True,
    ),
)


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
    """Every SGLang adapter: on real kernels, and, for a machine without a GPU, on emulated ones."""
    _, why_not = found_tree()
    gpu = libraries.has_gpu
    real = KernelSource(
        emulated=False, flash_attention=libraries.flash_attention_3 if libraries.fa3_missing is None else None
    )
    emulated = KernelSource(
        emulated=True,
        flash_attention=libraries.emulated_flash_attention_3,
        flashinfer=libraries.emulated_flashinfer,
    )
    missing = {
        "flashinfer": None if _installed("flashinfer") else "flashinfer-python is not installed",
        "fa3": libraries.fa3_missing,
    }
    entries = []
    for spec in SPECS:
        here = real if gpu or not spec.anywhere else emulated
        also = None if spec.anywhere else _no_gpu(spec, gpu) or missing.get(spec.backend)
        entries.append(SglangEntry(spec.name, why_not or also, False, _maker(spec.name, spec, here)))
        if spec.can_be_emulated:
            name = f"{spec.name}@emulated"
            also = "on a machine with a GPU the real kernels are used" if gpu else None
            entries.append(SglangEntry(name, why_not or also, True, _maker(name, spec, emulated)))
    return entries


def _no_gpu(spec: Spec, gpu: bool) -> str | None:
    if gpu:
        return None
    return f"no CUDA GPU here (without one: {spec.name}@emulated)" if spec.can_be_emulated else "no CUDA GPU here"


def _maker(name: str, spec: Spec, source: KernelSource) -> Callable[[], SglangAdapter]:
    def make() -> SglangAdapter:
        import_sglang(source)
        capabilities = spec.capabilities
        if source.emulated and spec.backend != "fa3":
            capabilities = dataclasses.replace(capabilities, graph=False)
        return SglangAdapter(
            name,
            spec.backend,
            source,
            capabilities,
            merge_legs=spec.merge_legs,
            prefix_seq_lens=spec.prefix_seq_lens,
            environment=dict(spec.environment),
            packages=spec.packages,
            traits=flashinfer_traits(source) if spec.backend == "flashinfer" else None,
        )

    return make


def flashinfer_traits(source: KernelSource) -> dict[str, Any]:
    """How FlashInfer's fa2 kernels round, as harness/adapters/flashinfer.py declares it for the same kernels."""
    try:
        version = "0.6.18" if source.emulated else metadata.version("flashinfer-python")
    except metadata.PackageNotFoundError:
        version = "0"
    before_0_7 = tuple(int(part) for part in version.split(".")[:2]) < (0, 7)
    return {"row_sum_dtype": "input", "rounded_splits": True, "masked_score": -5e4 if before_0_7 else None}


def import_sglang(source: KernelSource) -> None:
    """Import SGLang now, so that a failure is told as an environment's, not as a case's. Raises UsageError."""
    try:
        runtime(source)
    except Exception as problem:
        text = (str(problem).strip().splitlines() or [type(problem).__name__])[0]
        raise UsageError(f"SGLang cannot be imported here: {type(problem).__name__}: {text}") from problem


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False
