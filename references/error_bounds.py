"""How far a right kernel may be from golden attention, element by element.

Let p_k be the exact weights, o = sum p_k v_k the exact row, u_p and u_o the unit roundoffs of P and
of the output. A kernel computes fp32 scores, P = exp(s - m) rounded to its dtype, P @ V in fp32,
divides by the fp32 row sum, and rounds. Its errors:

1. *P rounded*, p_k -> p_k (1 + d_k) with |d_k| <= u_p:

       sum p_k d_k v_k = sum p_k d_k (v_k - o)  +  o sum p_k d_k

   The second term is at most u_p |o|. (It vanishes where the row sum is of rounded P.) The first is at
   most u_p sum p_k |v_k - o| (det). The d_k of random data do not know v, so it is also a sum of independent
   terms with standard deviation sigma * u_p * sqrt(sum p_k^2 (v_k - o)^2), and C1 = 6 of those (stat).
   For a mantissa m in [1, 2) distributed as 1/m (scores spread over a factor of e or more),
   sigma^2 = E[1/m^2] / 3 = (3/4) / (2 ln 2) / 3, sigma = 0.425, so C1 = 2.55.
2. *Output rounded*: u_o |o|; once more where the output is multiplied by a v_scale that is no power of two.
3. *Two legs merged* from partial outputs o1, o2 rounded to the output dtype, a the mass of leg 1:
   u_o (a |o1| + (1 - a) |o2|). With l > 2 legs cut at unknown places, (l - 1) u_o sum p_k |v_k|.
   *Splits rounded*: partial outputs o_j of mass a_j, their number and cuts unknown. Their roundings add up to
   at most u_o sum p_k |v_k| (det); they are independent, and a_j o_j is what the keys of split j add, so for
   random v sum (a_j o_j)^2 is about sum p_k^2 v_k^2, and at most |o|^2 more where v has a mean:
   C1 u_o sqrt(sum p_k^2 v_k^2) + u_o |o| (stat).
4. *fp32 arithmetic*: scores are off by at most about 2^-23 sum_d |scale q_d k_d|, weights by that
   relatively; the sum, its reciprocal, the exponential and the merge weights take a few roundings more:
   eps sum p_k |v_k|, eps = 2^-23 (FP32_ROUNDINGS + max_k sum_d |scale q_d k_d|).
5. *Underflow of P* below the smallest normal number of its dtype, where the rounding is absolute: |e_k| <= f p_max
   with f half the spacing of subnormals (fp16 2^-25, e4m3 2^-10, e5m2 2^-17; P <= 1). As in 1,
   sum e_k v_k = sum e_k (v_k - o) + o sum e_k, at most
   C_UNDERFLOW f p_max sqrt(n) (max|v| + |o|) + |o| min(1, n f p_max); the first factor takes the e_k to
   be independent of v. Kernels that scale P up first (FlashAttention 3's fp8 path, by 2^8) stay further inside.
6. *Softcap* by a tanh of relative error t: scores are off by t |s|, weights relatively by that: u_p grows
   by t max|s|, in both forms. The same for keys dequantised to the input dtype before Q @ K.
7. *fp32 underflow*: GPU kernels flush results below f = 2^-126 to 0 (ftz; so does ex2.approx.ftz). Weights relative
   to the row's maximum sum to at least 1, so what they lose reaches the output undivided:
   a weight that is flushed, be it exp(s - m), the factor that rescales a partial sum, or that of a split or leg
   in a merge, loses at most f max|v| for each of its keys, of which there are n, or of l legs; a flushed product
   or sum, at most two of them for each key, in each of those steps, and a flushed output lose f. Together less than
   FLUSHES f (n + l) (max|v| + max(1, v_scale)).
   It holds the rounding of subnormal bf16 (2^-134) and fp32 outputs; fp16's, 2^-25, is OUTPUT_FLOOR, once for each
   rounding in 2 and 3. The LSE needs none: its row sum is at least 1, and n f is nothing beside 2^-23.

    bound = min(stat, det), the sum of these

Measured on 10,000 drawn cases on emulated kernels (tests/certificates/study.py): no error beyond its bound. Largest
error/bound with P in the input dtype: 0.67 without sinks (median 0.44). Where one rounding of the output is the
only error (P in fp32; keys that a sink leaves a tiny weight) the bound is that rounding, and is
attained: 0.998. LSE: 0.91. The statistical form needs V that does not know how P rounds, which
holds for the data recipes in cases/recipes.py and not for crafted data; set statistical=False there.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cases.ragged import query_rows
from cases.recipes import LogicalData
from cases.schema import AttentionCase
from references.by_rows import row_slices
from references.golden import GoldenOutput, golden_attention
from references.moments import RowMoments
from references.traits import UNIT_ROUNDOFF, KernelTraits, is_power_of_two
from references.visibility import visible_count

C1 = 2.55  # 6 standard deviations; largest error/bound where it decides: 0.72 (head_dim 96, n = 77, bf16)
C_UNDERFLOW = 6.0  # standard deviations of an error uniform within +-f are f/sqrt(3): more than 10 of them
FP32_ROUNDINGS = 8.0  # exp, sum, reciprocal, product, twice; fp32 kernels reach 0.19 of the bound
LSE_ROUNDINGS = 4.0  # logarithm, maximum added, merge, change of base; with the rest, 0.91 of the bound
UNDERFLOW = {"float16": 2.0**-25, "float8_e4m3fn": 2.0**-10, "float8_e5m2": 2.0**-17}
FP32_FLUSH = 2.0**-126  # smallest normal fp32 number
FLUSHES = 8.0  # results that may be flushed per key or leg, in each of the two units of 7
OUTPUT_FLOOR = {"float16": 2.0**-25}  # half the spacing of subnormal outputs


@dataclass(frozen=True, slots=True)
class RowFactors:
    """What the bound of a row takes from its scalars, fp64 [total_q, num_qo_heads]:

        bound = p sqrt(spread) + size |o| + magnitude sum p_k |v_k| + constant + what `UnitTerms` says

    where spread is an upper bound of the smaller of (sum p_k |v_k - o|)^2 and C1^2 sum p_k^2 (v_k - o)^2.
    """

    p: Tensor
    size: Tensor
    magnitude: Tensor
    constant: Tensor


@dataclass(frozen=True, slots=True)
class UnitTerms:
    """Which terms a bound has once each in units of the output's roundoff, `unit`: 3 of the text for two legs, for
    rounded splits, and values that are dequantised first."""

    unit: float
    two_legs: bool
    splits: bool
    dequantised: bool


def row_bounds(
    case: AttentionCase,
    data: LogicalData,
    golden: GoldenOutput,
    traits: KernelTraits,
    *,
    statistical: bool = True,
) -> Tensor:
    """fp64 [total_q, num_qo_heads, head_dim_vo]: a right kernel's |out - golden.out| stays within it.

    `golden` best comes with moments; without, they cost another pass. Rows that see no key get 0:
    what they hold is the adapter's to declare.
    """
    moments = _moments(case, data, golden)
    factors = row_factors(case, moments, traits)
    return bounds_of(golden.out, moments, factors, unit_terms(case, traits), statistical=statistical)


def bounds_of(
    out: Tensor, moments: RowMoments, factors: RowFactors, terms: UnitTerms, *, statistical: bool = True
) -> Tensor:
    """The formula of RowFactors for exact rows `out`, fp64 [total_q, num_qo_heads, head_dim_vo]."""
    return torch.cat(
        [_bounds_of(out[at], moments.slice(at), _sliced(factors, at), terms, statistical) for at in row_slices(out)]
    )


def _bounds_of(out: Tensor, moments: RowMoments, factors: RowFactors, terms: UnitTerms, statistical: bool) -> Tensor:
    # A GPU computes the same in one pass (harness/judging/row_errors_triton.py).
    size, square = out.abs(), out * out
    spread = moments.squared_deviation(square)
    if statistical:
        spread = torch.minimum(spread, moments.squared_spread(out, square).mul_(C1**2))
    bound = spread.sqrt_().mul_(factors.p[..., None])
    magnitude = moments.magnitude()
    bound.addcmul_(size, factors.size[..., None]).addcmul_(magnitude, factors.magnitude[..., None])
    if terms.two_legs:
        # |leg| + |out - leg|, as max(|a + b|, |a - b|)
        bound.add_(torch.maximum(size, torch.sub(out, moments.leg, alpha=2).abs_()), alpha=terms.unit)
    if terms.splits or terms.dequantised:
        random = C1 * moments.p2v2.double().sqrt_()
        if terms.splits:
            term = torch.minimum(magnitude, size + random) if statistical else magnitude
            bound.add_(term, alpha=terms.unit)
        if terms.dequantised:
            bound.add_(torch.minimum(magnitude, random) if statistical else magnitude, alpha=terms.unit)
    return bound.add_(factors.constant[..., None])


def _sliced(factors: RowFactors, rows: slice) -> RowFactors:
    return RowFactors(*(getattr(factors, name)[rows] for name in RowFactors.__dataclass_fields__))


def unit_terms(case: AttentionCase, traits: KernelTraits) -> UnitTerms:
    dequantised = traits.dequantises_kv and not is_power_of_two(case.v_scale)
    return UnitTerms(UNIT_ROUNDOFF[case.dtype], traits.merge_legs == 2, traits.rounded_splits, dequantised)


def row_factors(case: AttentionCase, moments: RowMoments, traits: KernelTraits) -> RowFactors:
    mass, count = moments.mass, _count(case, moments.mass.device)
    u_out, roundings = UNIT_ROUNDOFF[case.dtype], _output_roundings(case)
    u_p = traits.p_roundoff(case.dtype) + _score_error(case, moments, traits)
    size = u_p * mass + u_out * roundings
    magnitude = _fp32_error(moments)
    if traits.merge_legs > 2:
        magnitude = magnitude + (traits.merge_legs - 1) * u_out
    # Each rounding of an output below the normal numbers is absolute; partial outputs weigh 1 in sum.
    floor = OUTPUT_FLOOR.get(case.dtype, 0.0) * (roundings + traits.merge_legs - 1)
    constant = (_flushed(case, moments, count, traits) + floor) * (mass > 0)
    underflow = UNDERFLOW.get(_p_dtype(case, traits))
    if underflow is not None:
        absolute = underflow * moments.p_max
        spread = C_UNDERFLOW * absolute * count.sqrt()
        size = size + spread + torch.minimum(mass, count * absolute)
        constant = constant + spread * moments.v_max
    return RowFactors(u_p if isinstance(u_p, Tensor) else torch.full_like(mass, u_p), size, magnitude, constant)


def lse_bounds(case: AttentionCase, data: LogicalData, golden: GoldenOutput, traits: KernelTraits) -> Tensor:
    """fp64 [total_q, num_qo_heads]: the same for the natural LSE, +0 for rows that see no key.

    The row sum is at most u_p off where it adds rounded P (C1 u_p sqrt(sum p^2) statistically); scores
    and the LSE's own roundings as in the module's text.
    """
    moments = _moments(case, data, golden)
    p_error = traits.p_roundoff(case.dtype) * torch.minimum(C1 * moments.p2.sqrt(), moments.mass)
    underflow = UNDERFLOW.get(_p_dtype(case, traits))
    if underflow is not None:
        p_error += underflow * moments.p_max * _count(case, golden.out.device)
    lse = golden.lse.nan_to_num(posinf=0.0, neginf=0.0).abs().clamp(min=1.0)
    own = LSE_ROUNDINGS * UNIT_ROUNDOFF["float32"] * lse
    return (p_error + _score_error(case, moments, traits) + _fp32_error(moments) + own) * (moments.mass > 0)


def _moments(case: AttentionCase, data: LogicalData, golden: GoldenOutput) -> RowMoments:
    if golden.moments is not None:
        return golden.moments
    moments = golden_attention(case, data, moments=True).moments
    assert moments is not None
    return moments


def _p_dtype(case: AttentionCase, traits: KernelTraits) -> str:
    return case.dtype if traits.p_dtype == "input" else traits.p_dtype


def _score_error(case: AttentionCase, moments: RowMoments, traits: KernelTraits) -> Tensor | float:
    """fp64 [total_q, Hq], or 0: absolute error of scores beyond fp32 arithmetic (softcap, dequantised keys)."""
    relative = 0.0 if case.logits_soft_cap is None else traits.tanh_error
    if traits.dequantises_kv and not is_power_of_two(case.k_scale):
        relative += UNIT_ROUNDOFF[case.dtype]
    return relative * moments.score_max if relative else 0.0


def _output_roundings(case: AttentionCase) -> int:
    return 1 if is_power_of_two(case.v_scale) else 2


def _fp32_error(moments: RowMoments) -> Tensor:
    return 2.0**-23 * (FP32_ROUNDINGS + moments.score_terms)


def _count(case: AttentionCase, device: torch.device) -> Tensor:
    """fp64 [total_q, 1]"""
    return visible_count(case, device).double()[:, None]


def _flushed(case: AttentionCase, moments: RowMoments, n: Tensor, traits: KernelTraits) -> Tensor:
    """fp64 [total_q, Hq]; n: fp64 [total_q, 1]"""
    return FLUSHES * FP32_FLUSH * (n + traits.merge_legs) * (moments.v_max + max(1.0, case.v_scale))


def worst(case: AttentionCase, error: Tensor, bound: Tensor) -> tuple[float, tuple[int, int, int]]:
    """The largest error/bound of |out - golden| [total_q, Hq, Dvo], and its request, query position, head.

    NaN counts as infinite; rows whose bound is 0 are not looked at.
    """
    ratio = torch.where(bound > 0, error / bound, 0.0).nan_to_num(nan=torch.inf).amax(-1)
    row, head = divmod(int(ratio.argmax()), ratio.shape[1])
    rows = query_rows(case, error.device)
    return float(ratio[row, head]), (int(rows.request[row]), int(rows.position[row]), head)
