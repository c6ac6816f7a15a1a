"""HEADS: each key belongs to a random class, and each q head of a group weighs another class by 4.

There are as many classes as q heads in a group (two at least), so a q head that reads another's query
weighs other keys; and the classes of another kv head or request are other ones, so K read from there, or
from another page, shows too. Random classes would break the walk, whose partial sums are only small over
contiguous keys: so each class has a walk of its own.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cases import counter_hash
from cases.ragged import Rows, kv_rows
from cases.recipes import LogicalData, torch_dtype
from cases.schema import AttentionCase
from references.certificates.base import Certificate, CertificateData, neutral_sinks, per_head, visible_sums
from references.certificates.codes import walk_codes
from references.certificates.domain import wide_enough
from references.certificates.scores import LN2, class_keys, class_queries, max_classes, unreachable
from references.traits import KernelTraits

HEAVY = 4
MAX_CLASSES = 16  # more would make sums that a bf16 output cannot hold; heads 16 apart then look alike


def count_classes(case: AttentionCase) -> int:
    return min(max(2, case.group_size), MAX_CLASSES, max_classes(case))


def walk_bound(case: AttentionCase) -> int:
    """Smaller walks for more classes: |S| <= bound * (classes + 3)."""
    return 4 if count_classes(case) <= 4 else 2


def favourite(case: AttentionCase, head: int) -> int:
    """The class that q head `head` weighs by HEAVY."""
    return (head % case.group_size + head // case.group_size) % count_classes(case)


def _classes(case: AttentionCase, rows: Rows, kv_head: int) -> Tensor:
    """int64 [total_kv], by hash of request and position."""
    keys = counter_hash.row_keys(
        counter_hash.stream_key(case.seed, f"heads/class/{kv_head}"), rows.request, rows.position
    )
    return ((keys >> 32) & 0xFFFFFF) % count_classes(case)


def build(case: AttentionCase, device: torch.device | str) -> CertificateData:
    rows, count = kv_rows(case, device), count_classes(case)
    classes, codes = [], []
    for head in range(case.num_kv_heads):
        of_head = _classes(case, rows, head)
        order = torch.argsort(rows.request * count + of_head, stable=True)
        codes.append(walk_codes(case.seed, f"heads/{head}", rows, case.head_dim_vo, walk_bound(case), order))
        classes.append(of_head)
    favourites = [favourite(case, h) for h in range(case.num_qo_heads)]
    by_q_head = torch.stack(classes, 1).repeat_interleave(case.group_size, 1)
    weights = torch.where(by_q_head == torch.tensor(favourites, device=device), HEAVY, 1).to(torch.int8)
    packed_codes = torch.stack(codes, 1)
    exact, intervals = visible_sums(case, packed_codes, weights, device)
    targets = [[2 * LN2 if c == wanted else 0.0 for c in range(count)] for wanted in favourites]
    return CertificateData(
        data=LogicalData(
            q=class_queries(case, targets, device),
            k=class_keys(case, torch.stack(classes, 1), count),
            v=packed_codes.float().to(torch_dtype(case.kv_dtype)),
            sinks=neutral_sinks(case, device),
        ),
        codes=packed_codes,
        weights=weights,
        exact=exact,
        intervals=intervals,
        lse_offset=per_head(case, 0.0, device),
        sum_bound=walk_bound(case) * (count - 1 + HEAVY),
        max_score=2 * LN2,
    )


def domain(case: AttentionCase, traits: KernelTraits) -> str | None:
    reason = wide_enough(case, traits)
    if reason is None and max_classes(case) < 2:
        reason = f"head_dim_qk {case.head_dim_qk} holds one class of keys, two are needed"
    return reason or unreachable(case, 2 * LN2, count_classes(case))


HEADS = Certificate(
    name="heads",
    summary="a class of keys per q head: head mapping, and the K side of pages",
    build=build,
    domain=domain,
    sees=(
        "window one key longer",
        "window one key shorter",
        "causal edge one later",
        "causal edge one earlier",
        "prefix only",
        "one key dropped",
        "page dropped",
        "page duplicated",
        "foreign page",
        "stale slot",
        "K page wrong",
        "V page wrong",
        "kv head rotated",
        "q head rotated",
        "scale off by 1/16",
        "half of head_dim",
    ),
    blind_to=("sink in base 2", "maximum over masked keys", "mask added as -1e4"),
)
