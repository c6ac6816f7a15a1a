"""The real FlashInfer behind the interface that the adapters use. Importing this module imports nothing of it."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from harness.adapters.flashinfer_modules import prebuilt_modules
from harness.errors import UsageError

WORKSPACE_BYTES = 256 * 1024 * 1024  # split-kv partials of large batches pass the recommended 128 MiB


class FlashInfer:
    """flashinfer-python >= 0.6.11, imported when built."""

    is_emulated = False
    workspace_bytes = WORKSPACE_BYTES

    def __init__(self) -> None:
        try:
            self._module = importlib.import_module("flashinfer")
        except ImportError as problem:
            raise UsageError(f"flashinfer cannot be imported: {problem}; install flashinfer-python.") from problem
        self.version = str(self._module.__version__)
        self.prebuilt: frozenset[str] | None = None
        if os.environ.get("FLASHINFER_DISABLE_JIT"):  # a module that nobody built ahead of time raises (jit/core.py)
            self.prebuilt = prebuilt_modules(Path(importlib.import_module("flashinfer.jit.env").FLASHINFER_AOT_DIR))

    def ragged_wrapper(self, workspace: Tensor, kv_layout: str, backend: str) -> Any:
        return self._module.BatchPrefillWithRaggedKVCacheWrapper(workspace, kv_layout, backend=backend)

    def paged_wrapper(self, workspace: Tensor, kv_layout: str, backend: str) -> Any:
        return self._module.BatchPrefillWithPagedKVCacheWrapper(workspace, kv_layout, backend=backend)

    def merge_state(self, v_a: Tensor, s_a: Tensor, v_b: Tensor, s_b: Tensor) -> tuple[Tensor, Tensor]:
        merged: tuple[Tensor, Tensor] = self._module.merge_state(v_a, s_a, v_b, s_b)
        return merged

    def append_paged_kv_cache(
        self,
        append_key: Tensor,
        append_value: Tensor,
        batch_indices: Tensor,
        positions: Tensor,
        paged_kv_cache: tuple[Tensor, Tensor],
        kv_indices: Tensor,
        kv_indptr: Tensor,
        kv_last_page_len: Tensor,
        kv_layout: str = "NHD",
    ) -> None:
        self._module.append_paged_kv_cache(
            append_key,
            append_value,
            batch_indices,
            positions,
            paged_kv_cache,
            kv_indices,
            kv_indptr,
            kv_last_page_len,
            kv_layout,
        )


def is_hopper() -> bool:
    """True on a device of compute capability 9.x: what the fa3 backend needs."""
    return torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9
