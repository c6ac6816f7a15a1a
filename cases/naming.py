"""A case's readable name: what is unusual about it, not every field; the id tells cases apart."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cases.schema import AttentionCase, Request

_DTYPE_SHORT = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "float32": "fp32",
    "float8_e4m3fn": "e4m3",
    "float8_e5m2": "e5m2",
}


def _short_requests(requests: tuple[Request, ...]) -> str:
    shown = "_".join(f"{r.prefix_len}+{r.extend_len}" for r in requests[:4])
    return shown if len(requests) <= 4 else f"{shown}_and{len(requests) - 4}more"


def readable_name(case: AttentionCase) -> str:
    """For example `extend-40+5_100+3-L31-8x2h64-bf16-p16`: mode, requests, window, heads, dtype, page size, extras."""
    default = {f.name: f.default for f in dataclasses.fields(case)}
    parts = [str(case.mode), _short_requests(case.requests)]
    parts.append("full" if case.window_left is None else f"L{case.window_left}")
    parts.append(f"{case.num_qo_heads}x{case.num_kv_heads}h{case.head_dim_qk}")
    if case.head_dim_vo != case.head_dim_qk:
        parts[-1] += f"v{case.head_dim_vo}"
    parts.append(_DTYPE_SHORT[case.dtype])
    if case.kv_dtype != case.dtype:
        parts.append(f"kv-{_DTYPE_SHORT[case.kv_dtype]}")
    parts.append(f"p{case.page_size}")
    if not case.causal:
        parts.append("bidirectional")
    if case.logits_soft_cap is not None:
        parts.append(f"cap{case.logits_soft_cap:g}")
    if case.sinks:
        parts.append("sinks")
    if case.execution.uses_graph:
        parts.append("graph")
    if case.execution.num_splits is not None:
        parts.append(f"split{case.execution.num_splits}")
    if case.execution.workspace == "dirty":
        parts.append("dirty")
    for name in ("page_order", "kv_layout", "poison", "recipe"):
        if getattr(case, name) != default[name]:
            parts.append(str(getattr(case, name)))
    if case.seed:
        parts.append(f"s{case.seed}")
    return "-".join(parts)
