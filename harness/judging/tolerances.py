"""The flat tolerances, and where each comes from.

They are what people quote, for unit-normal data. The per-row bound (references/error_bounds.py) is
what decides; these are reported beside it, and decide only when asked to (`--evidence atol`, or an
explicit `--atol`).
"""

from __future__ import annotations

import torch
from torch import Tensor

# Output of a single pass over unit-normal data: half an ulp of the output (|out| < 4 for the
# shortest rows, ulp of bf16 there 2^-6) plus the rounding of P. The largest error of a correct
# kernel measured on a GPU runner was 0.0086 (bf16, SWA merge path).
ATOL = {"bfloat16": 2e-2, "float16": 5e-3, "float32": 1e-4}

# fp32 accumulation of exp over up to 2^18 keys, and one fp32 logarithm: 1e-3 is 10 times the
# largest |LSE error| measured (1e-4, FlashAttention 3 and 4); the second term is the fp32 ulp at
# large magnitudes, which LURE-like data reach. A kernel that declares that it adds up rounded
# probabilities, or a softcap through the hardware's tanh, gets the derived bound where it is larger.
LSE_ATOL = 1e-3
LSE_RTOL = 2.0**-20


def default_atol(dtype: str) -> float:
    return ATOL[dtype]


def lse_tolerance(lse: Tensor, bound: Tensor) -> Tensor:
    """[total_q, num_qo_heads] from golden LSE and its derived bound (references/error_bounds.py)."""
    return torch.maximum(LSE_ATOL + LSE_RTOL * lse.nan_to_num(posinf=0.0, neginf=0.0).abs(), bound)
