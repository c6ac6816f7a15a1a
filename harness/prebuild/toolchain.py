"""The compilers that FlashInfer's JIT calls: found, or missed in one sentence."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from harness.errors import UsageError

LINK_LIMIT = 60.0  # seconds for a link of nothing
STUB_SOURCE = "int attn_harness_link_stub;\n"  # a shared library may leave the driver's symbols to be found at load


def require_compilers(cuda_home: str, missing: int) -> None:
    """Raises UsageError, one sentence, where nvcc, ninja or a C++ compiler is not there to build `missing` modules.

    ninja of this interpreter's environment counts, whether or not the environment is activated.
    """
    os.environ["PATH"] = os.pathsep.join((os.environ.get("PATH", ""), str(Path(sys.executable).parent)))
    nvcc = os.environ.get("FLASHINFER_NVCC", str(Path(cuda_home) / "bin" / "nvcc"))
    wanted = (
        (nvcc, "install the CUDA toolkit of the target machine's driver or set CUDA_HOME"),
        ("ninja", "pip install ninja"),
        (os.environ.get("CXX", "c++"), "install a C++ compiler or set CXX"),
    )
    for program, remedy in wanted:
        if shutil.which(program) is None:
            raise UsageError(f"{missing} modules are missing and {program} is not here to build them: {remedy}.")


def let_link(cuda_home: str, folder: Path) -> None:
    """Make `-lcuda` and `-lcudart` resolve, with an empty libcuda in `folder` where no driver is installed.

    The modules only name libcuda.so.1; the GPU machine's driver brings the real one.
    """
    _search(Path(cuda_home) / "lib64", Path(cuda_home) / "lib")
    if _links("-lcuda", cuda_home):
        return
    folder.mkdir(parents=True, exist_ok=True)
    source, stub = folder / "stub.c", folder / "libcuda.so"
    source.write_text(STUB_SOURCE)
    command = [_cxx(), "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-x", "c++", str(source), "-o", str(stub)]
    made = subprocess.run(command, capture_output=True, text=True, timeout=LINK_LIMIT, check=False)
    if made.returncode != 0:
        raise UsageError(f"{_cxx()} cannot make a shared library: {made.stderr.strip().splitlines()[-1]}.")
    _search(folder)


def _cxx() -> str:
    return os.environ.get("CXX", "c++")


def _links(library: str, cuda_home: str) -> bool:
    command = [_cxx(), "-shared", "-x", "c++", os.devnull, "-o", os.devnull, f"-L{cuda_home}/lib64/stubs", library]
    return subprocess.run(command, capture_output=True, timeout=LINK_LIMIT, check=False).returncode == 0


def _search(*folders: Path) -> None:
    """Add what exists of `folders` to the linker's own search path."""
    here = [str(folder) for folder in folders if folder.is_dir()]
    known = [part for part in os.environ.get("LIBRARY_PATH", "").split(os.pathsep) if part]
    os.environ["LIBRARY_PATH"] = os.pathsep.join([*known, *(part for part in here if part not in known)])
