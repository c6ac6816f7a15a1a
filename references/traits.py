"""What evidence has to know of a kernel: how it rounds, not how it works."""

from __future__ import annotations

import math
from dataclasses import dataclass

# Largest relative error of rounding to nearest, for normal numbers.
UNIT_ROUNDOFF = {
    "float32": 2.0**-24,
    "float16": 2.0**-11,
    "bfloat16": 2.0**-8,
    "float8_e4m3fn": 2.0**-4,
    "float8_e5m2": 2.0**-3,
}

# tanh.approx.f32, which both FlashInfer and FlashAttention use for softcap: maximum relative error
# 2^-11 (PTX ISA, "tanh").
HARDWARE_TANH = 2.0**-11


@dataclass(frozen=True, slots=True)
class KernelTraits:
    """Declared by an adapter.

    merge_legs:        partial outputs, each rounded to the output dtype, that are merged (1: one pass).
                       Two legs are the cached prefix and the new rows. Split-kv partials kept in fp32
                       do not count.
    p_dtype:           what probabilities are rounded to before P @ V; "input" is the dtype of q
    out_ulp:           output error in ulp beyond which the kernel counts as wrong; 0.5 is correct rounding
    lse_base:          "natural" or "log2": where the fp32 LSE was rounded (judges take it in natural units)
    lse_includes_sink: the returned LSE counts the sink
    tanh_error:        relative error of the kernel's tanh, for softcap
    rounded_splits:    split-kv partial outputs are rounded to the output dtype before they are merged, at cuts
                       chosen by a heuristic (FlashInfer fa2: `tmp_v` of batch_prefill.cu is of the output dtype)
    p_normalised:      P is divided by the row sum before it is rounded and multiplied by V, so that equal weights 1/n
                       are all off by one factor, which a large sum that should cancel shows
    masked_score:      what a masked key gets for <q, k>, before any scale; a visible key must score above it.
                       None: minus infinity (FlashInfer fa2 up to 0.6.18: -5e4, math.cuh)
    dequantises_kv:    fp8 keys and values are multiplied by k_scale and v_scale and rounded to the dtype of q
                       before use, instead of scaling scores and output
    """

    merge_legs: int = 1
    p_dtype: str = "input"
    out_ulp: float = 0.5
    lse_base: str = "natural"
    lse_includes_sink: bool = True
    tanh_error: float = HARDWARE_TANH
    rounded_splits: bool = False
    p_normalised: bool = False
    masked_score: float | None = None
    dequantises_kv: bool = False

    def p_roundoff(self, dtype: str) -> float:
        """Unit roundoff of P for a case whose q has `dtype`."""
        return UNIT_ROUNDOFF[dtype if self.p_dtype == "input" else self.p_dtype]


def is_power_of_two(value: float) -> bool:
    """Multiplying by it rounds nothing."""
    return math.frexp(value)[0] == 0.5
