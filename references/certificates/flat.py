"""FLAT: with q = 0 every visible key weighs 1/n, so out = S/n and LSE = ln n.

P is exactly 1 before normalisation in any dtype, so S/n is rounded once, and the integers S (the sum
of the visible keys' code words) and n come back exactly or the kernel attended to other keys.
The last three columns of V are special, and judged where rounding leaves their integer readable:

    contrast   +1 on the new rows, -1 on every 2^j-th key of the prefix: legs that are merged with the
               wrong weights (LSE in another base, or rounded) leave the sum, which is near 0
    mountain   +a then -a over the halves of the visible band, plus a walk: the partial sum rises to
               a*n/2 and falls again, which an accumulator below fp32 does not survive
    ones       normalisation: the output is 1
"""

from __future__ import annotations

import torch
from torch import Tensor

from cases.ragged import Rows, kv_rows
from cases.recipes import LogicalData, torch_dtype
from cases.schema import AttentionCase
from references.certificates.base import (
    Certificate,
    CertificateData,
    neutral_sinks,
    per_head,
    visible_sums,
)
from references.certificates.codes import sign_codes, walk_codes_by_head
from references.certificates.domain import wide_enough

WALK_BOUND = 8
MAX_MOUNTAIN = 5e5  # a * n: partial sums stay far inside the integers of fp32
MOUNTAIN_HEIGHT = {"float8_e4m3fn": 4, "float8_e5m2": 2}  # a +- 1 must be exact in the kv dtype


def flat_codes(case: AttentionCase, device: torch.device | str) -> Tensor:
    """int8 [total_kv, num_kv_heads, head_dim_vo]: walk-8, special columns last."""
    rows = kv_rows(case, device)
    codes = walk_codes_by_head(case.seed, "flat", rows, case.num_kv_heads, case.head_dim_vo, WALK_BOUND)
    codes[:, :, -1] = 1
    codes[:, :, -2] += _mountain(case, rows)[:, None]
    codes[:, :, -3] = _contrast(case, rows)[:, None]
    return codes


def _mountain(case: AttentionCase, rows: Rows) -> Tensor:
    """int8 [total_kv]: +a and -a by halves of the visible band, which under a window is periodic."""
    lengths = torch.tensor([r.kv_len for r in case.requests], device=rows.position.device)
    height = MOUNTAIN_HEIGHT.get(case.kv_dtype, 64)
    while height > 1 and height * case.max_kv_len > MAX_MOUNTAIN:
        height //= 2
    band = lengths if case.window_left is None else lengths.clamp(max=case.window_left + 1)
    band = band[rows.request]
    place = rows.position % band
    up, down = place < band // 2, place >= band - band // 2
    return (height * (up.to(torch.int8) - down.to(torch.int8))).to(torch.int8)


def _contrast(case: AttentionCase, rows: Rows) -> Tensor:
    """int8 [total_kv]: balanced between prefix and new rows for the last query of each request.

    The density is a power of two, so that a partial output -2^-j is exact in any dtype.
    """
    every, new_every = [], []
    for request in case.requests:
        new = min(request.extend_len, request.kv_len if case.window_left is None else case.window_left + 1)
        prefix = request.prefix_len
        if case.window_left is not None:
            prefix = min(prefix, max(0, case.window_left + 1 - new))
        every.append(_power_of_two_near(prefix / max(new, 1)))
        new_every.append(_power_of_two_near(new / max(prefix, 1)))
    device = rows.position.device
    prefix_len = torch.tensor([r.prefix_len for r in case.requests], device=device)[rows.request]
    offset = rows.position - prefix_len
    is_new = offset >= 0
    step = torch.where(is_new, torch.tensor(new_every, device=device)[rows.request], 0)
    step = torch.where(is_new, step, torch.tensor(every, device=device)[rows.request])
    on = offset.remainder(step) == 0
    return (on * torch.where(is_new, 1, -1)).to(torch.int8)


def _power_of_two_near(ratio: float) -> int:
    power = 1
    while power * 2**0.5 < ratio:
        power *= 2
    return power


def build(case: AttentionCase, device: torch.device | str) -> CertificateData:
    codes = flat_codes(case, device)
    exact, intervals = visible_sums(case, codes, None, device)
    return CertificateData(
        data=flat_inputs(case, codes, neutral_sinks(case, device), device),
        codes=codes,
        exact=exact,
        intervals=intervals,
        lse_offset=per_head(case, 0.0, device),
        sum_bound=WALK_BOUND,
        special=special_columns(case),
    )


def flat_inputs(case: AttentionCase, codes: Tensor, sinks: Tensor | None, device: torch.device | str) -> LogicalData:
    """q = 0 and K of random signs: a query read from elsewhere (a new row's K, say) would show."""
    rows = kv_rows(case, device)
    q = torch.zeros((case.total_q, case.num_qo_heads, case.head_dim_qk), dtype=torch_dtype(case.dtype), device=device)
    k = sign_codes(case.seed, "flat/k", rows, case.num_kv_heads, case.head_dim_qk)
    kv_dtype = torch_dtype(case.kv_dtype)
    return LogicalData(q=q, k=k.float().to(kv_dtype), v=codes.float().to(kv_dtype), sinks=sinks)


def special_columns(case: AttentionCase) -> dict[int, str]:
    return {case.head_dim_vo - 3: "contrast", case.head_dim_vo - 2: "mountain", case.head_dim_vo - 1: "ones"}


FLAT = Certificate(
    name="flat",
    summary="equal scores: which keys were attended to, and how often",
    build=build,
    domain=wide_enough,
    sees=(
        "window one key longer",
        "window one key shorter",
        "window ignored",
        "causal edge one later",
        "causal edge one earlier",
        "prefix only",
        "one key dropped",
        "page dropped",
        "page duplicated",
        "foreign page",
        "stale slot",
        "V page wrong",
        "kv head rotated",
        "LSE base mixed in the merge",
        "bf16 accumulator",
    ),
    blind_to=("K page wrong", "q head rotated", "scale off by 1/16", "softcap missing", "rescale omitted"),
)
