"""`attn-harness doctor --prebuild` and `--import`: what there is to do, done, and told."""

from __future__ import annotations

import importlib.util
import json
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from rich.console import Console

from cases.schema import AttentionCase
from harness.adapters.registry import missing_flash_attention
from harness.environment import core_count, gpu_ids
from harness.errors import UsageError
from harness.prebuild import parcel
from harness.prebuild.flash_attention_jit import Compiled, cache_root, compile_calls, kernels
from harness.prebuild.flashinfer_jit import FlashInferJit, Prebuilt, State
from harness.prebuild.progress import Steps
from harness.prebuild.recording import (
    ADAPTERS,
    FLASH_ATTENTION_4,
    FLASHINFER,
    Module,
    flash_attention_4_calls,
    flashinfer_modules,
)
from harness.prebuild.targets import (
    flash_attention_4_environment,
    flashinfer_environment,
    has_hopper,
    target_archs,
)


@dataclass(frozen=True, slots=True)
class Wish:
    """What was asked for. `jobs` None: one compiler per core."""

    cases: Sequence[AttentionCase]
    adapters: tuple[str, ...]
    arch: str | None
    jobs: int | None
    export: Path | None


def prebuild(wish: Wish, *, as_json: bool) -> int:
    """Build what the cases need. 0: all of it is there; 1: something did not compile. Raises UsageError."""
    if wish.jobs is not None and wish.jobs < 1:
        raise UsageError(f"--jobs is {wish.jobs}; give 1 or more.")
    jobs = wish.jobs or core_count()
    archs = target_archs(wish.arch)
    names, notes = choose_adapters(wish.adapters, archs)
    answer: dict[str, Any] = {"archs": list(archs), "adapters": names, "notes": notes}
    modules: list[Prebuilt] = []
    flashinfer = [name for name in names if name in FLASHINFER]
    if flashinfer:
        os.environ.update(flashinfer_environment(archs))  # read by the library when it is imported
        modules = _flashinfer(FlashInferJit(), _needed(wish.cases, flashinfer), jobs)
        answer["flashinfer"] = [
            {"module": m.name, "state": str(m.state), "seconds": m.seconds, "error": m.error} for m in modules
        ]
    before = kernels(cache_root())
    compiled: list[Compiled] = []
    if FLASH_ATTENTION_4 in names:
        compiled = _flash_attention_4(wish.cases, archs, jobs)
    mine = {file for file in kernels(cache_root()) if str(file.parent) in {one.cache for one in compiled}}
    if compiled:
        answer["flash-attn-4"] = {
            "calls": len(compiled),
            "failed": [one.error for one in compiled if one.error],
            "kernels_compiled": len(mine - before),
            "kernels": len(mine),
            "cache": str(cache_root()),
        }
    if wish.export is not None:
        ready = {m.name: m.library for m in modules if m.state is not State.FAILED}
        answer["exported"] = parcel.pack(wish.export, ready, cache_root(), mine, " ".join(archs) or "this GPU")
    _tell(answer, wish.export, as_json)
    failed = any(m.state is State.FAILED for m in modules) or any(one.error for one in compiled)
    return 1 if failed else 0


def choose_adapters(patterns: Sequence[str], archs: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """The adapters to build for, and a sentence for each that is left out without having been named.

    Raises UsageError where a pattern names none of them, or one whose library is not installed.
    """
    for pattern in patterns:
        if not any(fnmatch(name, pattern) for name in ADAPTERS):
            raise UsageError(f"{pattern!r} is none of the adapters that can be built for: {', '.join(ADAPTERS)}.")
    chosen: list[str] = []
    notes: list[str] = []
    for name in ADAPTERS:
        if patterns and not any(fnmatch(name, pattern) for pattern in patterns):
            continue
        why_not = _why_not(name, archs)
        if why_not is None:
            chosen.append(name)
        elif name in patterns:
            raise UsageError(f"nothing can be built for {name}: {why_not}.")
        else:
            notes.append(f"{name} is left out: {why_not}.")
    if not chosen:
        raise UsageError(notes[0].replace("is left out", "cannot be built for"))
    return chosen, notes


def _why_not(name: str, archs: tuple[str, ...]) -> str | None:
    if name == FLASH_ATTENTION_4:
        return missing_flash_attention("fa4")
    if importlib.util.find_spec("flashinfer") is None:
        return "flashinfer-python is not installed"
    if FLASHINFER[name].backend == "fa3" and not has_hopper(archs):
        return "its kernels are for compute capability 9.0 alone"
    return None


def _needed(cases: Sequence[AttentionCase], adapters: Sequence[str]) -> list[Module]:
    """Modules of all adapters, each once."""
    return list(dict.fromkeys(module for name in adapters for module in flashinfer_modules(cases, name)))


def _flashinfer(jit: FlashInferJit, modules: Sequence[Module], jobs: int) -> list[Prebuilt]:
    found = jit.look(modules)
    states = Counter(one.state for one, _ in found)
    said = ", ".join(f"{states[state]} {state}" for state in (State.AOT, State.CACHED, State.MISSING) if states[state])
    with Steps(states[State.MISSING], f"FlashInfer: {len(found)} modules needed, {said}") as steps:
        jit.build(found, jobs, lambda one: steps.add(f"{one.state} {one.name} {one.error}".rstrip(), one.seconds))
    return [one for one, _ in found]


def _flash_attention_4(cases: Sequence[AttentionCase], archs: tuple[str, ...], jobs: int) -> list[Compiled]:
    calls = flash_attention_4_calls(cases)
    compiled: list[Compiled] = []
    on_this_gpu: tuple[str | None, ...] = (None,)
    for arch in archs or on_this_gpu:
        title = f"FlashAttention 4: {len(calls)} kinds of calls" + (f" for {arch}" if arch else "")
        with Steps(len(calls), title) as steps:

            def tell(one: Compiled, steps: Steps = steps) -> None:
                steps.add(f"failed: {one.error}" if one.error else "", None)

            compiled += compile_calls(calls, flash_attention_4_environment(arch), jobs, tell)
    return compiled


def import_parcel(path: Path, *, as_json: bool) -> int:
    """Lay a parcel out where the libraries of this environment look. Raises UsageError."""
    folders = {parcel.FLASH_ATTENTION_4: cache_root()}
    if importlib.util.find_spec("flashinfer") is not None:
        if not gpu_ids():  # the library wants a target before it says where its folders are
            os.environ.setdefault("FLASHINFER_CUDA_ARCH_LIST", "9.0a")
        folders[parcel.FLASHINFER] = FlashInferJit().aot_folder
    counts = parcel.unpack(path, folders)
    if as_json:
        print(json.dumps({"laid_out": counts, "folders": {kind: str(folders[kind]) for kind in counts}}))
        return 0
    for kind, count in counts.items():
        print(f"{kind}: {count} files in {folders[kind]}")
    if parcel.FLASH_ATTENTION_4 in counts:
        print(USE_CACHE)
    return 0


USE_CACHE = "FlashAttention 4 takes kernels from disk only with FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED=1."


def _tell(answer: dict[str, Any], export: Path | None, as_json: bool) -> None:
    if as_json:
        print(json.dumps(answer))
        return
    console = Console(highlight=False, soft_wrap=True)
    for note in answer["notes"]:
        console.print(note, markup=False)
    if "flashinfer" in answer:
        states = Counter(module["state"] for module in answer["flashinfer"])
        console.print("FlashInfer modules: " + ", ".join(f"{count} {state}" for state, count in states.items()))
        for module in answer["flashinfer"]:
            if module["error"]:
                console.print(f"  {module['module']}: {module['error']}", markup=False)
    if "flash-attn-4" in answer:
        told = answer["flash-attn-4"]
        console.print(
            f"FlashAttention 4: {told['kernels']} kernels for {told['calls']} kinds of calls, "
            f"{told['kernels_compiled']} of them new, in {told['cache']}",
            markup=False,
        )
        for error, count in Counter(told["failed"]).items():
            console.print(f"  {count} failed: {error}", markup=False)
        console.print(USE_CACHE)
    if export is not None:
        console.print(f"exported: {answer['exported']} files in {export}", markup=False)
