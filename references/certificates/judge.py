"""Reading the integers back from a kernel's output.

With total weight N (the number of visible keys, for FLAT) the right output is S/N, so out * N must
round to S and exp(LSE) to N. What correct kernels may leave, in units of S (u: unit roundoff of the
output dtype):

    u |S|                  rounding of the output; 0 if S/N is representable
    u (|S1| + |S2|)        two legs whose partial outputs are rounded; each 0 if representable
    u (2l - 2) B           a chain of l legs cut at unknown places, B the bound of any contiguous sum
                           (such chains are held to CHAIN_BUDGET)
    6 s u B sqrt(l / 6)    l partial outputs at a heuristic's cuts (`rounded_splits`): no bound but six standard
                           deviations of their sum. s = 0.425 as in error_bounds.py; a contiguous walk of
                           bound B has size B / sqrt(6). l: one for SPLIT_KEYS keys, MOST_SPLITS at most
    2^-20 (|S1| + |S2|)    merge weights from an fp32 LSE
    2 r |s|max sum_bound   relative error r of scores: hardware tanh, keys scaled by no power of two

An element is judged where the roundings add up to no more than BUDGET, and all of it to no more than
PROOF, so that reaching THRESHOLD proves another integer. Walk codes stay within it by construction;
special columns where they apply.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from cases.ragged import query_rows
from cases.recipes import torch_dtype
from cases.schema import AttentionCase
from references.certificates.base import THRESHOLD, CertificateData, CertificateResult
from references.certificates.exact import Sums
from references.traits import UNIT_ROUNDOFF, KernelTraits, is_power_of_two

BUDGET = 0.1
CHAIN_BUDGET = 0.25  # more than two legs: every plain column would pass BUDGET
PROOF = 0.45  # with errors of scores: still short of THRESHOLD
ALMOST_EXACT = 2.0**-12  # beside a spacing of outputs, in units of S
SPLIT_KEYS = 128  # the fewest keys that FlashInfer's planner gives a split (scheduler.cuh, min_kv_chunk_size)
MOST_SPLITS = 132  # it aims at two CTAs a multiprocessor, and a Hopper GPU has 132, for at least two kv heads
SPLIT_SPREAD = 6 * 0.425 / 6**0.5
MERGE_WEIGHT_ERROR = 2.0**-20
FP32_LSE_ULPS = 4  # roundings on the way to an LSE: the sum, its logarithm, the maximum added, the legs'
LG2_ERROR = 2.0**-22  # relative, of lg2.approx.f32 (PTX ISA); torch's FA2 was seen 0.6 of it off on an H200
CHUNK_ELEMENTS = 1 << 24


def judge(
    recipe: str, case: AttentionCase, built: CertificateData, out: Tensor, lse: Tensor | None, traits: KernelTraits
) -> CertificateResult:
    """Compare with the exact answer. Shapes as in `Certificate.judge`; rows without a key are not judged."""
    legs = built.first_leg(case) if traits.merge_legs == 2 else None
    wrong = torch.zeros(out.shape[:2], dtype=torch.bool, device=out.device)
    differing = torch.zeros(out.shape[:2], dtype=torch.int64, device=out.device)
    only_special = torch.zeros_like(wrong)
    s_max, judged = 0.0, 0
    step = max(1, CHUNK_ELEMENTS // (out.shape[1] * out.shape[2]))
    for start in range(0, out.shape[0], step):
        at = slice(start, start + step)
        residual, mask = _code_residual(case, built, at, out, legs, traits)
        bad = mask & ~(residual < THRESHOLD)
        differing[at] = bad.sum(-1)
        only_special[at] = differing[at] == bad[:, :, list(built.special)].sum(-1)
        judged += int(mask.sum())
        s_max = max(s_max, _largest(residual, mask))
    wrong |= differing > 0
    n_max, counted = None, None
    if lse is not None:
        counted = recovered_weight(built, lse, traits)
        excess = (counted - built.exact.weight).abs()
        seen = built.exact.weight > 0
        wrong |= seen & ~(excess < count_tolerance(case, built, traits))
        n_max = _largest(excess, seen)
    first, message = _explain(recipe, case, built, wrong, differing, only_special, counted)
    return CertificateResult(
        recipe=recipe,
        passed=first is None,
        s_max=s_max,
        n_max=n_max,
        judged=judged / max(1, out.numel()),
        wrong_rows=wrong,
        message=message,
        first=first,
    )


def _code_residual(
    case: AttentionCase, built: CertificateData, at: slice, out: Tensor, legs: Sums | None, traits: KernelTraits
) -> tuple[Tensor, Tensor]:
    """|out * N - S| and which elements of it are judged, fp64 and bool [rows, Hq, Dvo]."""
    # Where keys weigh the same for all, the q heads of a group have one answer, and it is looked at once.
    alike = case.group_size if built.weights is None and built.targets is None and built.sink_mass is None else 1
    code = built.exact.code[at, ::alike].double()
    weight = built.exact.weight[at, ::alike].double()[:, :, None]
    total = weight if built.sink_mass is None else weight + built.sink_mass[None, :, None]
    by_group = out[at].double().reshape(code.shape[0], -1, alike, out.shape[2])
    residual = (by_group * (total / case.v_scale)[:, :, None] - code[:, :, None]).abs_().flatten(1, 2)
    budget = _rounding(case, code, total)
    if legs is not None:
        part = legs.code[at, ::alike].double()
        part_weight = legs.weight[at, ::alike].double()[:, :, None]
        merged = (part_weight > 0) & (part_weight < weight)
        # Which leg counts a sink is the kernel's affair: partial outputs are then taken to be rounded.
        exact = built.sink_mass is None
        roundings = _rounding(case, part, part_weight, exact)
        roundings += _rounding(case, code - part, weight - part_weight, exact)
        roundings += MERGE_WEIGHT_ERROR * (part.abs() + (code - part).abs())
        # An output that is no longer exact before its own rounding is rounded, even if S/N would not be.
        budget = torch.where(merged & (roundings > ALMOST_EXACT), _rounding(case, code, total, False), budget)
        budget += torch.where(merged, roundings, 0.0)
    if traits.merge_legs > 2:
        budget += UNIT_ROUNDOFF[case.dtype] * (2 * traits.merge_legs - 2) * built.sum_bound
    if traits.p_normalised:
        budget += traits.p_roundoff(case.dtype) * code.abs()
    if traits.merge_legs > 2 or traits.rounded_splits:
        budget[:, :, list(built.special)] = torch.inf
    budget *= 2 * traits.out_ulp  # a kernel declared good to k ulp only
    limit = CHAIN_BUDGET if traits.merge_legs > 2 else BUDGET * max(1.0, 2 * traits.out_ulp)
    scores = 2 * score_error(case, traits) * built.max_score * built.sum_bound
    judged = (budget <= limit) & (budget + scores + _splits(case, built, at, traits) < PROOF) & (weight > 0)
    return residual, judged.repeat_interleave(alike, 1) if alike > 1 else judged


def _splits(case: AttentionCase, built: CertificateData, at: slice, traits: KernelTraits) -> Tensor:
    """What rounded split-kv partials may add, in units of S: fp64 [rows, 1, 1]."""
    keys = (built.intervals.end - built.intervals.begin)[at].double()
    splits = torch.ceil(keys / SPLIT_KEYS).clamp(max=MOST_SPLITS)
    size = SPLIT_SPREAD * UNIT_ROUNDOFF[case.dtype] * built.sum_bound * splits.sqrt()
    return torch.where(splits > 1, size, 0.0)[:, None, None] * traits.rounded_splits


def _rounding(case: AttentionCase, code: Tensor, weight: Tensor, may_be_exact: bool = True) -> Tensor:
    """Largest change, in units of S, from rounding v_scale * S/N to the output dtype: u|S|, or 0 if exact."""
    rounding = code.abs() * UNIT_ROUNDOFF[case.dtype]
    if may_be_exact:
        value = code * case.v_scale / weight
        rounding = torch.where(value.to(torch_dtype(case.dtype)).double() == value, 0.0, rounding)
    if not is_power_of_two(case.v_scale):
        # Dequantised V rounds +-v_scale, for all keys alike; a rounded output times v_scale rounds again.
        rounding = rounding + code.abs() * UNIT_ROUNDOFF[case.dtype]
    return rounding


def score_error(case: AttentionCase, traits: KernelTraits) -> float:
    """Relative error of scores beyond fp32 rounding."""
    error = 0.0
    if case.logits_soft_cap is not None:
        error += traits.tanh_error
    if traits.dequantises_kv and not is_power_of_two(case.k_scale):
        error += UNIT_ROUNDOFF[case.dtype]
    return error


def recovered_weight(built: CertificateData, lse: Tensor, traits: KernelTraits) -> Tensor:
    """fp64 [total_q, Hq]: the total weight that a natural LSE speaks of."""
    weight = torch.exp(lse.double() - built.lse_offset)
    if built.sink_mass is not None and traits.lse_includes_sink:
        weight = weight - built.sink_mass
    return weight


def count_tolerance(case: AttentionCase, built: CertificateData, traits: KernelTraits) -> Tensor:
    """fp64 [total_q, Hq]: how far the recovered weight may be off.

    `count_margin` (1/2: another integer is nearer), until an fp32 LSE no longer resolves that: then
    FP32_LSE_ULPS of it and the error of the hardware's logarithm, which happens beyond n = 100,000 for
    FLAT; up to n = 190,000 one key too many or too few is still another count. S alone speaks beyond.
    """
    total = built.exact.weight.double()
    if built.sink_mass is not None and traits.lse_includes_sink:
        total = total + built.sink_mass
    lse = built.lse_offset + torch.log(total.clamp(min=1))
    size = torch.maximum(lse.abs(), built.lse_offset.abs() + 0 * lse)
    # Rounding happens in the LSE's own base; in log2 the number is larger, and so is its last place.
    base = math.log(2) if traits.lse_base == "log2" else 1.0
    ulp = torch.exp2(torch.floor(torch.log2((size / base).clamp(min=2.0**-20))) - 23) * base
    slack = torch.expm1(
        FP32_LSE_ULPS / 2 * ulp + LG2_ERROR * size + score_error(case, traits) * max(built.max_score, 0.0)
    )
    return (total * slack).clamp(min=built.count_margin)


def _largest(values: Tensor, mask: Tensor) -> float:
    """The largest judged value; not a number counts as infinite."""
    return float(torch.where(mask, values, 0.0).nan_to_num(nan=torch.inf).amax()) if mask.numel() else 0.0


def _explain(
    recipe: str,
    case: AttentionCase,
    built: CertificateData,
    wrong: Tensor,
    differing: Tensor,
    only_special: Tensor,
    counted: Tensor | None,
) -> tuple[tuple[int, int, int] | None, str]:
    if not bool(wrong.any()):
        return None, ""
    row, head = (int(x) for x in wrong.nonzero()[0])
    rows = query_rows(case, wrong.device)
    request, position = int(rows.request[row]), int(rows.position[row])
    right = int(built.exact.weight[row, head])
    said = _difference(built, right, None if counted is None else float(counted[row, head]))
    columns = int(differing[row, head])
    if columns and only_special[row, head]:
        names = " and ".join(sorted(set(built.special.values())))
        said += f"; only the special columns ({names}) differ, which points at how parts are merged or accumulated"
    return (request, position, head), (
        f"{recipe}: request {request} query {position} head {head} {said}; "
        f"the code sum differs in {columns} of {case.head_dim_vo} columns "
        f"({int(wrong.sum())} of {wrong.numel()} rows are wrong)."
    )


def _difference(built: CertificateData, right: int, counted: float | None) -> str:
    """What a row did, in attention terms, from the weight its LSE speaks of."""
    counts_keys = built.weights is None and built.targets is None
    if counted is None:
        return "attended to other keys, or weighed them otherwise"
    if not math.isfinite(counted):
        return f"has an LSE of no finite weight, {right} is right"
    shown = f"{counted:.2f}" if abs(counted - round(counted)) > 0.1 and counted < 1e6 else f"{counted:.0f}"
    if abs(counted - right) < THRESHOLD:
        return (
            f"attended to {right} keys as it should, but to other ones or unequally"
            if counts_keys
            else f"gave its keys the total weight {right} as it should, but to other ones"
        )
    if counts_keys:
        return f"attended to {shown} keys, {right} are visible"
    return f"gave its keys a total weight of {shown}, {right} is right"
