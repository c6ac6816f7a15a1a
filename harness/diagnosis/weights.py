"""Right keys, wrong weights: which change of scale, head or logarithm turns the right answer into the seen one."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from cases.recipes import LogicalData
from cases.schema import AttentionCase
from harness.diagnosis.observing import Seen, Truth
from references.golden import golden_attention

LN2 = math.log(2.0)


def scale_guesses(case: AttentionCase) -> Iterator[tuple[str, AttentionCase]]:
    """Cases whose right answer a kernel with wrong weights might give."""
    default = case.head_dim_qk**-0.5
    factors = {
        "by ln 2 (log2(e) is missing)": LN2,
        "by log2(e)": 1 / LN2,
        "by 2": 2.0,
        "by 1/2": 0.5,
        "to the default 1/sqrt(head_dim)": default / case.scale,
        "twice": case.scale,
        "not at all": 1 / case.scale,
        "as for head_dim 128": 128**-0.5 / case.scale,
        "as for head_dim 64": 64**-0.5 / case.scale,
    }
    for words, factor in factors.items():
        if abs(factor - 1) > 1e-6:
            yield f"scores are scaled {words}", case.replace(sm_scale=case.scale * factor)
    if case.logits_soft_cap is not None:
        yield "the soft cap is not applied", case.replace(logits_soft_cap=None)


def say_weights(truth: Truth, data: LogicalData, seen: Seen) -> list[str]:
    """One line for each simple change that reproduces the output, or the LSE, within its bound."""
    case = truth.case
    lines = []
    if bool((_error(seen.out, truth.golden.out, truth.bound) <= 1).all()):
        lines += _lse_alone(truth, seen)
    for words, other in scale_guesses(case):
        if _close(truth, golden_attention(other, data).out, seen):
            lines.append(words)
    if not lines:
        lines += _fitted_scale(truth, data, seen)
    if data.sinks is not None:
        without = LogicalData(data.q, data.k, data.v, None)
        if _close(truth, golden_attention(case, without).out, seen):
            lines.append("the sinks are not applied")
    for words, order in _head_orders(case):
        moved = LogicalData(data.q, data.k[:, order], data.v[:, order], data.sinks)
        if _close(truth, golden_attention(case, moved).out, seen):
            lines.append(words)
    return lines


def _fitted_scale(truth: Truth, data: LogicalData, seen: Seen) -> list[str]:
    """The factor on scores that comes closest to the output, if one comes within its bound."""

    def distance(factor: float) -> float:
        return float(_error(seen.out, _scaled(truth, data, factor), truth.bound).nan_to_num(posinf=1e9).mean())

    best = min((2.0 ** (step / 4) for step in range(-12, 13)), key=distance)
    for width in (0.12, 0.03, 0.008, 0.002, 0.0005):
        best = min((best * (1 + width * step) for step in (-1.0, -0.5, 0.0, 0.5, 1.0)), key=distance)
    if abs(best - 1) > 1e-3 and _close(truth, _scaled(truth, data, best), seen):
        return [f"scores are scaled by {best:.3g}"]
    return []


def _scaled(truth: Truth, data: LogicalData, factor: float) -> Tensor:
    return golden_attention(truth.case.replace(sm_scale=truth.case.scale * factor), data).out


def _error(out: Tensor, right: Tensor, bound: Tensor) -> Tensor:
    return ((out - right).abs() / (bound + 1e-30)).nan_to_num(nan=torch.inf)


def _close(truth: Truth, right: Tensor, seen: Seen) -> bool:
    """Within twice the bound, and the right answer is not."""
    moved = float(_error(seen.out, right, truth.bound).max())
    return moved <= 2 and moved < 0.5 * float(_error(seen.out, truth.golden.out, truth.bound).max())


def _lse_alone(truth: Truth, seen: Seen) -> list[str]:
    if seen.lse is None:
        return []
    usable = truth.golden_lse.isfinite() & seen.lse.isfinite() & (truth.golden_lse.abs() > 0.1)
    if not bool(usable.any()):
        return ["the output is right; the LSE is not a number"]
    ratio = seen.lse[usable] / truth.golden_lse[usable]
    middle = float(ratio.median())
    if float((ratio - middle).abs().max()) < 1e-2 and abs(middle - 1) > 1e-2:
        base = " (log2 taken for natural)" if abs(middle - 1 / LN2) < 1e-2 else ""
        base = " (natural taken for log2)" if abs(middle - LN2) < 1e-2 else base
        return [f"the output is right; the LSE is {middle:.4f} times what it should be{base}"]
    off = float((seen.lse[usable] - truth.golden_lse[usable]).abs().max())
    if off < 1e-3:
        return []
    return [f"the output is right; the LSE alone is off, by up to {off:.3g}"]


def _head_orders(case: AttentionCase) -> Iterator[tuple[str, list[int]]]:
    heads = case.num_kv_heads
    if heads > 1:
        for shift in sorted({1, heads - 1}):
            order = [(h + shift) % heads for h in range(heads)]
            yield f"each query head reads the kv head {shift} further", order
