"""What is installed here: versions for records, devices for the runner. Nothing here touches CUDA."""

from __future__ import annotations

import functools
import os
import platform
import shutil
import subprocess
import sys
from importlib import metadata

from harness.errors import UsageError

# A distribution's name here, the key in a record.
PACKAGES = ("torch", "triton", "flashinfer-python", "flash-attn-4", "flash-attn", "vllm", "sglang", "transformers")

DRIVER_LIMIT = 60.0  # seconds for nvidia-smi


def installed_versions(packages: tuple[str, ...] = PACKAGES) -> dict[str, str]:
    """Versions of the packages that are installed, with Python's own.

    Read again once sys.path has changed: SGLang's tree is put there when an adapter is first asked for.
    """
    return dict(_versions(packages, tuple(sys.path)))


@functools.cache
def _versions(packages: tuple[str, ...], path: tuple[str, ...]) -> dict[str, str]:
    del path
    found = {"python": platform.python_version()}
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


@functools.cache
def gpu_ids() -> tuple[str, ...]:
    """The GPUs that workers may be given: CUDA_VISIBLE_DEVICES if set, else all that the driver lists. Raises
    UsageError where the driver does not answer.

    Asks the driver's own tool: a process that only hands GPUs out must not create a CUDA context.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return tuple(gpu.strip() for gpu in visible.split(",") if gpu.strip() not in ("", "-1"))
    return tuple(index for index in _driver_says("index") if index.isdigit())


@functools.cache
def least_shared_memory() -> int:
    """Free bytes of the fullest GPU that the driver lists; 0 where there is none, where one is not to be shared by
    processes (its compute mode), and where the driver does not say."""
    try:
        told = [line.partition(", ") for line in _driver_says("memory.free,compute_mode")]
    except UsageError:
        return 0
    sizes = [int(free) << 20 if free.isdigit() and mode == "Default" else 0 for free, _, mode in told]  # free: in MiB
    return min(sizes, default=0)


def _driver_says(what: str) -> list[str]:
    """Properties of each GPU; [] without a driver. Raises UsageError where it does not answer."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    try:
        listing = subprocess.run(
            [tool, f"--query-gpu={what}", "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=DRIVER_LIMIT,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        raise UsageError(
            f"{tool} gives no answer; is the driver well? CUDA_VISIBLE_DEVICES names GPUs without asking it."
        ) from None
    return [line.strip() for line in listing.stdout.splitlines()] if listing.returncode == 0 else []


def core_count() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
