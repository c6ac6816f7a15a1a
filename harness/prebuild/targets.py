"""Which GPUs to compile for, in the spelling of each library."""

from __future__ import annotations

import os
import re

from harness.environment import gpu_ids
from harness.errors import UsageError

ARCH = re.compile(r"(\d+)\.(\d)([af]?)")
# Streaming multiprocessors of the usual part, which FlashAttention 4 asks for where no GPU can be asked.
MULTIPROCESSORS = {(9, 0): 132, (10, 0): 148}


def target_archs(asked: str | None) -> tuple[str, ...]:
    """Compute capabilities such as "9.0a": `asked`, or FLASHINFER_CUDA_ARCH_LIST; () is the GPU that is here.

    Raises UsageError for what is no capability, and where there is neither a wish nor a GPU.
    """
    text = asked or os.environ.get("FLASHINFER_CUDA_ARCH_LIST", "")
    archs = tuple(text.replace(",", " ").split())
    for arch in archs:
        if ARCH.fullmatch(arch) is None:
            raise UsageError(f"{arch!r} is no compute capability; write --arch 9.0a (H100, H200) or 10.0a (B200).")
    if not archs and not gpu_ids():
        raise UsageError("there is no GPU here to ask what to build for; say it: --arch 9.0a (H100, H200).")
    return tuple(_suffixed(arch) for arch in archs)


def _suffixed(arch: str) -> str:
    """9.0 -> 9.0a: what both libraries compile for from Hopper on (FlashInfer spells 12.0 as 12.0f)."""
    major, minor, suffix = _parts(arch)
    if suffix or major < 9:
        return arch
    return f"{major}.{minor}{'f' if (major, minor) == (12, 0) else 'a'}"


def _parts(arch: str) -> tuple[int, int, str]:
    matched = ARCH.fullmatch(arch)
    assert matched is not None, arch
    return int(matched[1]), int(matched[2]), matched[3]


def has_hopper(archs: tuple[str, ...]) -> bool:
    """Whether FlashInfer's fa3 modules can be built for one of `archs` (or for the GPU that is here)."""
    return not archs or any(_parts(arch)[0] == 9 for arch in archs)


def flashinfer_environment(archs: tuple[str, ...]) -> dict[str, str]:
    return {"FLASHINFER_CUDA_ARCH_LIST": " ".join(archs)} if archs else {}


def flash_attention_4_environment(arch: str | None) -> dict[str, str]:
    """What flash-attn-4 4.0.0b36 reads to compile without a GPU (flash_attn/cute/interface.py), and to keep the result.

    Raises UsageError where the number of multiprocessors of a target is not known.
    """
    kept = {"FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED": "1"}
    if arch is None:
        return kept
    major, minor, suffix = _parts(arch)
    count = os.environ.get("FLASH_ATTENTION_NUM_SMS") or MULTIPROCESSORS.get((major, minor))
    if count is None:
        raise UsageError(f"set FLASH_ATTENTION_NUM_SMS to the multiprocessors of the {arch} GPU to compile for it.")
    return kept | {
        "FLASH_ATTENTION_ARCH": f"sm_{major}{minor}",
        "CUTE_DSL_ARCH": f"sm_{major}{minor}{suffix}",
        "FLASH_ATTENTION_NUM_SMS": str(count),
    }
