"""What is installed here: versions for records, devices for the runner. Nothing here touches CUDA."""

from __future__ import annotations

import functools
import os
import platform
import shutil
import subprocess
import sys
from importlib import metadata

# A distribution's name here, the key in a record.
PACKAGES = ("torch", "triton", "flashinfer-python", "flash-attn-4", "flash-attn", "vllm", "sglang", "transformers")


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
    """The GPUs that workers may be given: CUDA_VISIBLE_DEVICES if set, else all that the driver lists.

    Asks the driver's own tool: a process that only hands GPUs out must not create a CUDA context.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return tuple(gpu.strip() for gpu in visible.split(",") if gpu.strip() not in ("", "-1"))
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ()
    listing = subprocess.run(
        [tool, "--query-gpu=index", "--format=csv,noheader"], capture_output=True, text=True, timeout=60, check=False
    )
    if listing.returncode != 0:
        return ()
    return tuple(line.strip() for line in listing.stdout.splitlines() if line.strip().isdigit())


def core_count() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
