"""LURE+ and LURE-: masked keys whose scores would win, if anything of them came through.

    lure-plus    visible scores 0, hidden ones +2e5: a mask that is added as a finite number (-1e4, the
                 smallest fp16) leaves the hidden keys ahead
    lure-minus   visible scores -2e4, hidden ones 0: a maximum taken over masked keys leaves nothing of the
                 visible ones; with a softcap, visible scores are -cap, which is also what a mask
                 applied before the cap gives to hidden keys

Weights are equal, so out = S/n as in FLAT. Hidden scores have to differ from row to row, and a matrix of
scores has at most head_dim independent rows: so some rows are *pivots*, each with a column of its own for the keys
after it and one for the keys before its window; a row between two pivots borrows those of the neighbour
whose hidden keys are all hidden from it too. Every row is judged, and faces most of the lures it could.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from cases.ragged import indptr, kv_rows, query_rows
from cases.recipes import LogicalData, torch_dtype
from cases.schema import AttentionCase
from references.certificates.base import Certificate, CertificateData, neutral_sinks, per_head, visible_sums
from references.certificates.codes import walk_codes_by_head
from references.certificates.domain import wide_enough
from references.traits import KernelTraits
from references.visibility import visible_interval

WALK_BOUND = 8
HIDDEN = 2e5
VISIBLE = 2e4  # negative; beyond the -1e4 that masks are written with, short of a -5e4 that means "no key"
NO_ROW = 1 << 60
K_SIZE = 64.0  # exact in every dtype down to e5m2


def _pivots(case: AttentionCase) -> int:
    """Columns for keys after a row, and as many for keys before its window; one column is for all keys."""
    return (case.head_dim_qk - 1) // 2


def lure_inputs(case: AttentionCase, device: torch.device | str, visible: float, lure: float) -> tuple[Tensor, Tensor]:
    """q and k with score `visible` on visible keys, and visible + lure on most hidden ones.

    q holds lure / (K_SIZE * scale) in the columns of its two pivots, k holds K_SIZE where the key is
    hidden from that pivot. Powers of two throughout, so that visible + lure is 0 exactly where it should be.
    """
    dtype, pivots, dim = torch_dtype(case.dtype), _pivots(case), case.head_dim_qk
    rows, keys = query_rows(case, device), kv_rows(case, device)
    first, last = visible_interval(case, rows)
    start = indptr([r.extend_len for r in case.requests], device, torch.int64)
    extend = torch.tensor([r.extend_len for r in case.requests], device=device)
    used = extend.clamp(min=1, max=pivots)
    index = torch.arange(pivots, device=device)
    # Spread evenly, the last row among those for keys after it, the first among those for keys before.
    exists = (index < used[:, None]) & (extend[:, None] > 0)
    right_row = ((index + 1) * extend[:, None] + used[:, None] - 1) // used[:, None] - 1
    left_row = index * extend[:, None] // used[:, None]
    right_row, left_row = (torch.where(exists, row, NO_ROW) for row in (right_row, left_row))
    pivot_last = torch.where(exists, last[_packed(start, right_row)], NO_ROW)[keys.request]
    pivot_first = torch.where(exists, first[_packed(start, left_row)], -1)[keys.request]
    k = torch.zeros((keys.position.numel(), dim), device=device)
    k[:, :pivots] = (keys.position[:, None] >= pivot_last).float()
    k[:, pivots : 2 * pivots] = (keys.position[:, None] < pivot_first).float()
    k[:, -1] = 1.0
    q = torch.zeros((case.total_q, dim), device=device)
    local = torch.arange(case.total_q, device=device) - start[rows.request]
    later = torch.searchsorted(right_row[rows.request], local[:, None].contiguous())
    earlier = torch.searchsorted(left_row[rows.request], local[:, None].contiguous(), right=True) - 1
    size = 1 / (K_SIZE * case.scale * case.k_scale)
    q.scatter_(1, later, lure * size)
    q.scatter_(1, pivots + earlier, lure * size)
    q[:, -1] = visible * size
    q = q[:, None].expand(-1, case.num_qo_heads, -1)
    k = (k * K_SIZE)[:, None].expand(-1, case.num_kv_heads, -1)
    return q.to(dtype).contiguous(), k.to(torch_dtype(case.kv_dtype)).contiguous()


def _packed(start: Tensor, row: Tensor) -> Tensor:
    """Indices into the packed rows; rows that do not exist point anywhere."""
    return (start[:-1, None] + row).clamp(max=max(0, int(start[-1]) - 1))


def _power_above(case: AttentionCase, score: float) -> float:
    """The score of the next power-of-two q: what is really reached, at least `score`."""
    unit = K_SIZE * case.scale * case.k_scale
    return float(2.0 ** math.ceil(math.log2(score / unit)) * unit)


def _build(case: AttentionCase, device: torch.device | str, name: str, visible: float, lure: float) -> CertificateData:
    rows = kv_rows(case, device)
    codes = walk_codes_by_head(case.seed, name, rows, case.num_kv_heads, case.head_dim_vo, WALK_BOUND)
    exact, intervals = visible_sums(case, codes, None, device)
    q, k = lure_inputs(case, device, visible, lure)
    cap = case.logits_soft_cap
    return CertificateData(
        data=LogicalData(q=q, k=k, v=codes.float().to(torch_dtype(case.kv_dtype)), sinks=neutral_sinks(case, device)),
        codes=codes,
        exact=exact,
        intervals=intervals,
        lse_offset=per_head(case, visible if cap is None else cap * math.tanh(visible / cap), device),
        sum_bound=WALK_BOUND,
    )


def build_plus(case: AttentionCase, device: torch.device | str) -> CertificateData:
    return _build(case, device, "lure-plus", 0.0, _power_above(case, HIDDEN))


def build_minus(case: AttentionCase, device: torch.device | str) -> CertificateData:
    # The lure cancels the visible score, in the same product: hidden keys score 0.
    visible = _power_above(case, VISIBLE)
    return _build(case, device, "lure-minus", -visible, visible)


def _domain(case: AttentionCase, traits: KernelTraits, score: float) -> str | None:
    reason = wide_enough(case, traits)
    if reason is not None:
        return reason
    if case.causal is False and case.window_left is None:
        return "no key is hidden from any query"
    if case.dtype == "float16" and _power_above(case, score) / (K_SIZE * case.scale * case.k_scale) > 65504:
        return f"sm_scale {case.scale:g} asks for queries that float16 cannot hold"
    return None


def domain_plus(case: AttentionCase, traits: KernelTraits) -> str | None:
    if case.logits_soft_cap is not None:
        return "a softcap holds hidden scores down to the cap"
    return _domain(case, traits, HIDDEN)


def domain_minus(case: AttentionCase, traits: KernelTraits) -> str | None:
    lowest = -_power_above(case, VISIBLE) / case.scale
    if case.logits_soft_cap is None and traits.masked_score is not None and lowest <= traits.masked_score:
        return f"the kernel gives masked keys {traits.masked_score:g} for <q, k>, above the recipe's {lowest:g}"
    return _domain(case, traits, VISIBLE)


LURE_PLUS = Certificate(
    name="lure-plus",
    summary="hidden keys would win by far: masks added as a finite number",
    build=build_plus,
    domain=domain_plus,
    sees=(
        "window one key longer",
        "window one key shorter",
        "causal edge one earlier",
        "prefix only",
        "one key dropped",
        "V page wrong",
        "mask added as -1e4",
    ),
    blind_to=("q head rotated", "sink in base 2"),
)
LURE_MINUS = Certificate(
    name="lure-minus",
    summary="hidden keys score higher: a maximum over masked keys, a mask applied before the softcap",
    build=build_minus,
    domain=domain_minus,
    sees=(
        "window one key longer",
        "window one key shorter",
        "causal edge one earlier",
        "prefix only",
        "one key dropped",
        "V page wrong",
        "maximum over masked keys",
        "mask before softcap",
    ),
    blind_to=("q head rotated", "sink in base 2"),
)
