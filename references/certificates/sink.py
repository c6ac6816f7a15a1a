"""SINK: FLAT with a sink per head that weighs about as much as all visible keys together.

out * (n + e^s) = S and LSE = ln(n + e^s). Sinks are exact in bf16, differ from head to head by steps of
1/16, and lie around ln n for the median row, so that a sink left out, counted in both legs of a merge, read
from another head, scaled, or taken in base 2 changes S by a large part of itself.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from cases.schema import AttentionCase
from references.certificates.base import Certificate, CertificateData, per_head, visible_sums
from references.certificates.domain import wide_enough
from references.certificates.flat import WALK_BOUND, flat_codes, flat_inputs, special_columns
from references.traits import KernelTraits
from references.visibility import visible_count

STEP = 1 / 16  # exact in bf16 up to 16
LADDER = 32


def certificate_sinks(case: AttentionCase, device: torch.device | str) -> Tensor:
    """float32 [num_qo_heads], exact in bf16."""
    counts = visible_count(case)
    typical = max(2.0, float(counts[counts > 0].double().median())) if bool((counts > 0).any()) else 2.0
    middle = round(math.log(typical) / STEP)
    rungs = [middle + (head * 11) % LADDER - LADDER // 2 for head in range(case.num_qo_heads)]
    return torch.tensor(rungs, dtype=torch.float32, device=device) * STEP


def build(case: AttentionCase, device: torch.device | str) -> CertificateData:
    codes = flat_codes(case, device)
    exact, intervals = visible_sums(case, codes, None, device)
    sinks = certificate_sinks(case, device)
    return CertificateData(
        data=flat_inputs(case, codes, sinks, device),
        codes=codes,
        exact=exact,
        intervals=intervals,
        lse_offset=per_head(case, 0.0, device),
        sink_mass=torch.exp(sinks.double()),
        sum_bound=WALK_BOUND,
        special=special_columns(case),
    )


def domain(case: AttentionCase, traits: KernelTraits) -> str | None:
    return wide_enough(case, traits) if case.sinks else "the case has no sinks"


SINK = Certificate(
    name="sink",
    summary="a sink per head: left out, scaled, in base 2, of another head, counted twice",
    build=build,
    domain=domain,
    sees=(
        "window one key longer",
        "window one key shorter",
        "causal edge one later",
        "causal edge one earlier",
        "one key dropped",
        "stale slot",
        "sink ignored",
        "sink in base 2",
        "sink scaled",
        "sink of the next head",
        "sink in both legs",
    ),
    blind_to=("q head rotated", "K page wrong", "scale off by 1/16"),
)
