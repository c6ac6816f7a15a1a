"""Small stand-ins for the two libraries' compilers, as packages on disk: what prebuilding calls, and no more."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from harness import environment

FLASHINFER = {
    "__init__.py": "",
    "jit/__init__.py": "",
    "jit/attention/__init__.py": "",
    "jit/env.py": """
import os, pathlib
FLASHINFER_AOT_DIR = pathlib.Path(__file__).parents[1] / "data" / "aot"
FLASHINFER_JIT_DIR = pathlib.Path(os.environ["FLASHINFER_WORKSPACE_BASE"]) / "cached_ops"
ARCHS = os.environ.get("FLASHINFER_CUDA_ARCH_LIST")
""",
    "jit/cpp_ext.py": """
def get_cuda_path():
    raise RuntimeError("Could not find nvcc")
""",
    "jit/core.py": """
import os
from . import env
class Spec:
    def __init__(self, name):
        self.name = name
        self.aot_path = env.FLASHINFER_AOT_DIR / name / f"{name}.so"
        self.jit_library_path = env.FLASHINFER_JIT_DIR / name / f"{name}.so"
    @property
    def is_aot(self):
        return self.aot_path.exists()
    @property
    def is_compiled(self):
        return self.get_library_path().exists()
    def get_library_path(self):
        return self.aot_path if self.is_aot else self.jit_library_path
    def build(self, verbose=None):
        if "head_dim_qk_256" in self.name:
            raise RuntimeError("Ninja output:\\nkernel.cu(3): error: no such tile\\nninja: build stopped")
        self.jit_library_path.parent.mkdir(parents=True, exist_ok=True)
        self.jit_library_path.write_text(f"{self.name} for {env.ARCHS}, {os.environ['MAX_JOBS']} jobs")
def build_jit_specs(specs, verbose=False):
    for spec in specs:
        spec.build()
""",
    "jit/attention/modules.py": """
import torch
from ..core import Spec
SHORT = {torch.bfloat16: "bf16", torch.float16: "f16", torch.int32: "i32"}
def gen_batch_prefill_module(backend, q, kv, o, idx, dim_qk, dim_vo, posenc, window, cap, f16qk):
    return Spec(
        f"batch_prefill_with_kv_cache_dtype_q_{SHORT[q]}_dtype_kv_{SHORT[kv]}_dtype_o_{SHORT[o]}_dtype_idx_{SHORT[idx]}"
        f"_head_dim_qk_{dim_qk}_head_dim_vo_{dim_vo}_posenc_{posenc}_use_swa_{window}_use_logits_cap_{cap}"
        f"_f16qk_{f16qk}" + ("_sm90" if backend == "fa3" else "")
    )
""",
    **{
        f"jit/{name}.py": f"from .core import Spec\ndef gen_{name}_module():\n    return Spec({name!r})\n"
        for name in ("cascade", "page", "quantization")
    },
}
FLASH_ATTN = {
    "__init__.py": "",
    "cute/__init__.py": "",
    "cute/interface.py": """
import pathlib, os
class Cache(dict):
    cache_path = pathlib.Path(os.environ["FLASH_ATTENTION_CUTE_DSL_CACHE_DIR"]) / ("a" * 64) / "fwd"
calls = []
def _flash_attn_fwd(q, k, v, *, out, lse, page_table, seqused_k, learnable_sink, window_size_left, **others):
    if learnable_sink is not None:
        raise AssertionError("no sinks\\nin this build")
    calls.append((q, k, window_size_left))
    Cache.cache_path.mkdir(parents=True, exist_ok=True)
    (Cache.cache_path / ("0" * 63 + str(int(window_size_left is None)) + ".o")).write_text("kernel")
    return out, lse
_flash_attn_fwd.compile_cache = Cache()
""",
}


def write_package(root: Path, package: str, files: dict[str, str], distribution: str, version: str) -> None:
    for name, text in files.items():
        path = root / package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    metadata = root / f"{distribution.replace('-', '_')}-{version}.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")


def forget_libraries() -> dict[str, ModuleType]:
    """Take the two libraries out of the imported modules."""
    names = [name for name in sys.modules if name.split(".")[0] in ("flashinfer", "flash_attn")]
    return {name: sys.modules.pop(name) for name in names}


@pytest.fixture
def libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder first on the path with both stand-ins; compilers that do nothing; no GPU."""
    site = tmp_path / "site"
    write_package(site, "flashinfer", FLASHINFER, "flashinfer-python", "0.6.18.post1")
    write_package(site, "flash_attn", FLASH_ATTN, "flash-attn-4", "4.0.0b36")
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("ninja", "nvcc"):
        (tools / name).write_text("#!/bin/sh\n")
        (tools / name).chmod(0o755)
    for name, value in {
        "FLASHINFER_WORKSPACE_BASE": str(tmp_path / "workspace"),
        "FLASH_ATTENTION_CUTE_DSL_CACHE_DIR": str(tmp_path / "kernels"),
        "FLASHINFER_NVCC": str(tools / "nvcc"),
        "CXX": "true",
        "CUDA_VISIBLE_DEVICES": "",
        "PATH": f"{tools}:/usr/bin:/bin",
        "LIBRARY_PATH": "",
        "MAX_JOBS": "",
    }.items():
        monkeypatch.setenv(name, value)
    for name in ("FLASHINFER_CUDA_ARCH_LIST", "FLASH_ATTENTION_NUM_SMS"):
        monkeypatch.setenv(name, "")  # so that what the command sets is put back
        monkeypatch.delenv(name)
    monkeypatch.syspath_prepend(site)
    environment.gpu_ids.cache_clear()
    importlib.invalidate_caches()
    real = forget_libraries()
    yield site
    forget_libraries()
    sys.modules.update(real)
    environment.gpu_ids.cache_clear()


@pytest.fixture
def forget() -> Callable[[], object]:
    """Makes the next import of a library run it anew."""
    return forget_libraries
