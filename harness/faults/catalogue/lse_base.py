"""Natural and base-2 logarithms taken for each other."""

from __future__ import annotations

import math

from torch import Tensor

from cases.schema import AttentionCase, Request
from harness.emulation.hooks import Launch
from harness.faults.catalogue import building as b
from harness.faults.protocol import Fault, FaultClass

LN2 = math.log(2.0)

PAIR = AttentionCase(requests=(Request(5, 2),))


def other_base(launch: Launch, values: Tensor) -> Tensor:
    """FlashAttention's natural LSE as log2, FlashInfer's log2 as natural."""
    return values / LN2 if launch.kernel.startswith("flash_attention") else values * LN2


def weights_in_other_base(where: str, weights: Tensor) -> Tensor:
    """e^lse read as 2^lse: weights to the power ln 2, normalised again."""
    if where != "merge_state":
        return weights
    flatter = weights.pow(LN2)
    return flatter / flatter.sum(0, keepdim=True)


def in_bfloat16(launch: Launch, values: Tensor) -> Tensor:
    del launch
    return values.bfloat16().float()


FAULTS: tuple[Fault, ...] = (
    Fault(
        "scale-lacks-log2e",
        FaultClass.LSE_BASE,
        "log2(e) is missing from the scale: softmax in base 2 of natural scores",
        ("flashinfer PR #787",),
        on_plan=b.replanned(lambda case: {"sm_scale": case.scale * LN2}),
        smallest=PAIR,
    ),
    Fault(
        "lse-in-other-base",
        FaultClass.LSE_BASE,
        "LSE is handed out in the other base",
        ("flashinfer PR #787",),
        on_kernel=b.kernel(lse=other_base),
        adapters=b.SINGLE_PASS,
        smallest=PAIR,
    ),
    Fault(
        "merge-in-other-base",
        FaultClass.LSE_BASE,
        "the merge takes natural LSEs for base-2 ones",
        on_kernel=b.kernel(merge=weights_in_other_base),
        blind=b.has_prefix,
        adapters=b.FLASHINFER_MERGE,
        smallest=PAIR,
    ),
    Fault(
        "lse-rounded-to-bf16",
        FaultClass.LSE_BASE,
        "LSE is rounded to bf16 on its way out",
        on_kernel=b.kernel(lse=in_bfloat16),
        adapters=b.SINGLE_PASS,
        smallest=PAIR,
    ),
)
