"""FlashInfer's compiled modules: what they are called, and which were built ahead of time."""

from __future__ import annotations

from pathlib import Path


def module_name(dtype: str, head_dim: int, window: bool, soft_cap: bool, backend: str) -> str:
    """The name under which FlashInfer caches the module of a plan (jit/attention/modules.py,
    get_batch_prefill_uri), for prebuilding it."""
    short = {"bfloat16": "bf16", "float16": "f16"}[dtype]
    return (
        f"batch_prefill_with_kv_cache_dtype_q_{short}_dtype_kv_{short}_dtype_o_{short}_dtype_idx_i32_"
        f"head_dim_qk_{head_dim}_head_dim_vo_{head_dim}_posenc_0_use_swa_{window}_use_logits_cap_{soft_cap}_"
        f"f16qk_False{'_sm90' if backend == 'fa3' else ''}"
    )


def prebuilt_modules(folder: Path) -> frozenset[str]:
    """Names of the modules under FlashInfer's folder of ahead-of-time builds (NAME/NAME.so)."""
    return frozenset(path.stem for path in folder.glob("*/*.so") if path.stem == path.parent.name)
