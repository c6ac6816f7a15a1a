"""How far transformers' eager attention may be from golden attention in bf16 or fp16.

A kernel keeps its scores in fp32; eager attention rounds them to the model's dtype after every step,
so `references.error_bounds` alone does not cover it. With u the unit roundoff of the dtype, s the exact
score of a key and c its softcapped value, the rounded score is off by at most

    e = 2u|s|                   the product q . k, and * scaling
    e = 3u|s| + 2u|c|           with a softcap: / cap, then tanh and * cap (tanh is no steeper than 1)
    e + u|s - max|              in gpt-oss, which subtracts the row maximum in the model's dtype, sink included

(times 1 + 4u for products of roundings). A weight is then off by a factor of at most exp(e) to either side.
With w = exp(error) and sums over the visible keys and the sink (whose value is 0),

    o' - o = sum p w (v - o) / sum p w = sum p (w - 1)(v - o) / sum p w
    |o' - o| <= exp(max e) sum p expm1(e) |v - o|

because sum p (v - o) is 0. The roundings of P and of the output follow, as `row_bounds` has them for an
adapter that rounds P to the input dtype, on weights and an output changed by that much.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cases.ragged import indptr, query_rows
from cases.recipes import LogicalData
from cases.schema import AttentionCase
from references.error_bounds import row_bounds
from references.golden import GoldenOutput, scores
from references.traits import UNIT_ROUNDOFF, KernelTraits
from references.visibility import visible_interval, visible_mask

EAGER = KernelTraits(merge_legs=1, p_dtype="input", tanh_error=0.0)


def eager_bounds(case: AttentionCase, data: LogicalData, golden: GoldenOutput) -> Tensor:
    """fp64 [total_q, num_qo_heads, head_dim_vo]: eager attention's |out - golden.out| stays within it.

    Holds all scores of a request at once; for small cases, with no kv scales.
    """
    first, last = visible_interval(case, query_rows(case, "cpu"))
    q_at = indptr([r.extend_len for r in case.requests]).tolist()
    kv_at = indptr([r.kv_len for r in case.requests]).tolist()
    moved, factor = [], []
    for i, request in enumerate(case.requests):
        rows, keys = slice(q_at[i], q_at[i + 1]), slice(kv_at[i], kv_at[i + 1])
        mask = visible_mask(first[rows], last[rows], torch.arange(request.kv_len))
        one = LogicalData(data.q[rows], data.k[keys], data.v[keys], data.sinks)
        bound, largest = _score_rounding(case, one, golden.out[rows], mask)
        moved.append(bound)
        factor.append(torch.exp(2 * largest))
    own = row_bounds(case, data, golden, EAGER)
    score = torch.cat(moved)
    # P and the output are rounded after the scores were: their sizes have moved by the score term.
    rounding_of_moved = (UNIT_ROUNDOFF[case.dtype] * 2) * score
    return own * torch.cat(factor) + score + rounding_of_moved


def _score_rounding(case: AttentionCase, data: LogicalData, out: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """The score term [rows, Hq, dv] and the largest error of a score [rows, Hq, 1] of one request.

    mask: bool [rows, keys].
    """
    u = UNIT_ROUNDOFF[case.dtype]
    capped = scores(case, data.q, data.k).flatten(0, 1)
    plain = scores(case.replace(logits_soft_cap=None), data.q, data.k).flatten(0, 1)
    error = 2 * u * plain.abs()
    if case.logits_soft_cap is not None:
        error = 3 * u * plain.abs() + 2 * u * capped.abs()
    values = data.v.double().repeat_interleave(case.group_size, dim=1).transpose(0, 1)
    if data.sinks is not None:
        sink = data.sinks.double()[:, None, None].expand(-1, capped.shape[1], 1)
        capped = torch.cat([capped, sink], -1)
        values = torch.cat([values, torch.zeros_like(values[:, :1])], 1)
        mask = torch.nn.functional.pad(mask, (0, 1), value=True)
        top = capped.masked_fill(~mask, -torch.inf).amax(-1, keepdim=True)
        error = torch.nn.functional.pad(error, (0, 1)) + u * (top - capped).abs()
    error = (error * (1 + 4 * u)).masked_fill(~mask, 0.0)
    weights = torch.softmax(capped.masked_fill(~mask, -torch.inf), -1)
    largest = error.amax(-1, keepdim=True)
    distance = (values[:, None] - out.transpose(0, 1)[:, :, None]).abs()
    term = torch.exp(largest) * torch.matmul((weights * torch.expm1(error))[:, :, None], distance)[:, :, 0]
    return term.transpose(0, 1), largest.transpose(0, 1)
