"""How far from its integer a right kernel leaves a certificate's answer, by what it declares of its roundings.

Half is the next integer and fails. Below it a certificate passes, but a kernel that leaves more than others of its kind
did computes something differently, and is worth a look before it grows. Largest distances over all passing certificates
of `seeds`, `smoke`, `model-zoo` and `long-context` (to 131,072 keys) on one H200, reports/h200:

    one pass                 0.095   FlashAttention 2, 3, 4, FlashInfer fa3, torch, vLLM (STEP, SINK)
    parts rounded, merged    0.36    FlashInfer fa2 at 131,072 keys: partial outputs in the dtype of the output
"""

from __future__ import annotations

from references.traits import KernelTraits

ONE_PASS = 0.12
ROUNDED_PARTS = 0.4


def usual_residual(traits: KernelTraits) -> float:
    """What kernels with these traits stay below."""
    return ROUNDED_PARTS if traits.rounded_splits or traits.merge_legs > 1 else ONE_PASS


def remark(residual: float, traits: KernelTraits) -> str:
    """One sentence for a pass that left more than usual, else empty."""
    usual = usual_residual(traits)
    if residual <= usual:
        return ""
    return f"exact, but {residual:.2f} from an integer where kernels of this kind stay below {usual:g}: look at it"
