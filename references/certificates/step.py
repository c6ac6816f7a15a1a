"""STEP: keys weigh 1, 2 or 4 by the third of the visible band they stand in.

Scores are exact multiples of ln 2 (scores.py), ascending on even heads and descending on odd ones, and
start at an offset. The online softmax has to raise its maximum and rescale what it holds; the LSE is
offset + ln N with N the sum of the weights. With a softcap the targets are higher, where the cap bends.
Under a window the thirds are those of the window and repeat, so that every row sees all of them.

Two columns of V balance class against class (one for ascending heads, one for descending ones), to see the
weights where no LSE is given; the rest is walk-4 codes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cases.ragged import Rows, kv_rows
from cases.recipes import LogicalData, torch_dtype
from cases.schema import AttentionCase
from references.certificates.base import Certificate, CertificateData, neutral_sinks, visible_sums
from references.certificates.codes import walk_codes_by_head
from references.certificates.domain import wide_enough
from references.certificates.scores import LN2, MAX_OF_CAP, class_keys, class_queries, unreachable
from references.traits import KernelTraits

WALK_BOUND = 4
CLASSES = 3
OFFSET = 4  # in units of ln 2: weights 2^4, 2^5, 2^6
CAPPED_OFFSET = 6  # higher, where a cap bends more; lower still below small caps


def offset(case: AttentionCase) -> int:
    """The score of the lightest class, in units of ln 2."""
    if case.logits_soft_cap is None:
        return OFFSET
    return max(-1, min(CAPPED_OFFSET, int(MAX_OF_CAP * case.logits_soft_cap / LN2) - (CLASSES - 1)))


def _targets(case: AttentionCase, head: int) -> list[float]:
    sign = 1 if head % 2 == 0 else -1
    return [sign * (offset(case) + c) * LN2 for c in range(CLASSES)]


def _weights(head: int) -> list[int]:
    """Of the classes, with the heaviest power of two taken out into the LSE's offset."""
    return [1, 2, 4] if head % 2 == 0 else [4, 2, 1]


def _classes(case: AttentionCase, rows: Rows) -> Tensor:
    """int64 [total_kv]"""
    lengths = torch.tensor([r.kv_len for r in case.requests], device=rows.position.device)
    band = lengths if case.window_left is None else lengths.clamp(max=case.window_left + 1)
    band = band[rows.request]
    return (rows.position % band) * CLASSES // band


def _balance(case: AttentionCase, rows: Rows, classes: Tensor, light: int) -> Tensor:
    """int8 [total_kv]: +1 on the light class, -1 on every other key of the middle one (twice as heavy)."""
    del case
    middle = (classes == 1) & (rows.position % 2 == 0)
    return ((classes == light).to(torch.int8) - middle.to(torch.int8)).to(torch.int8)


def build(case: AttentionCase, device: torch.device | str) -> CertificateData:
    rows = kv_rows(case, device)
    classes = _classes(case, rows)
    codes = walk_codes_by_head(case.seed, "step", rows, case.num_kv_heads, case.head_dim_vo, WALK_BOUND)
    codes[:, :, -2] = _balance(case, rows, classes, 0)[:, None]
    codes[:, :, -1] = _balance(case, rows, classes, CLASSES - 1)[:, None]
    heads = range(case.num_qo_heads)
    table = torch.tensor([_weights(h) for h in heads], dtype=torch.int8, device=device)
    weights = table[:, classes].T.contiguous()
    exact, intervals = visible_sums(case, codes, weights, device)
    return CertificateData(
        data=LogicalData(
            q=class_queries(case, [_targets(case, h) for h in heads], device),
            k=class_keys(case, classes[:, None].expand(-1, case.num_kv_heads), CLASSES),
            v=codes.float().to(torch_dtype(case.kv_dtype)),
            sinks=neutral_sinks(case, device),
        ),
        codes=codes,
        weights=weights,
        exact=exact,
        intervals=intervals,
        lse_offset=torch.tensor([min(_targets(case, h)) for h in heads], dtype=torch.float64, device=device),
        # A contiguous set of keys meets each class in at most one run, and one of them in two.
        sum_bound=WALK_BOUND * (1 + 2 + 4 + 4),
        special={case.head_dim_vo - 2: "class balance", case.head_dim_vo - 1: "class balance"},
        max_score=(offset(case) + CLASSES - 1) * LN2,
    )


def domain(case: AttentionCase, traits: KernelTraits) -> str | None:
    reason = wide_enough(case, traits)
    if reason is not None:
        return reason
    heaviest = (offset(case) + CLASSES - 1) * LN2
    return unreachable(case, heaviest, CLASSES) or unreachable(case, max(offset(case), 1) * LN2, CLASSES)


STEP = Certificate(
    name="step",
    summary="three weights by position: scale, softcap, online softmax, the maximum in the LSE",
    build=build,
    domain=domain,
    sees=(
        "window one key longer",
        "window one key shorter",
        "window ignored",
        "causal edge one later",
        "causal edge one earlier",
        "prefix only",
        "one key dropped",
        "page dropped",
        "stale slot",
        "V page wrong",
        "kv head rotated",
        "q head rotated",
        "scale off by 1/16",
        "half of head_dim",
        "softcap missing",
        "softcap before scale",
        "rescale omitted",
        "LSE base mixed in the merge",
        "bf16 LSE in the merge",
    ),
    blind_to=("sink in base 2", "maximum over masked keys", "mask added as -1e4"),
)
