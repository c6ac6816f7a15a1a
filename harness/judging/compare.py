"""Comparing an output with golden attention: NaN never passes, one worst place is named."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from cases.schema import AttentionCase
from harness.adapters.protocol import EmptyRow, LseBase
from harness.judging.row_errors import element_error, element_ratio, largest_error, largest_ratio
from harness.judging.where import row_place, say_place
from harness.verdict import Evidence

LN2 = math.log(2.0)
NO_LSE = "the path gives no LSE"


def finite(value: float) -> float | None:
    """A JSON number, or None for what JSON has no number for."""
    return value if math.isfinite(value) else None


def check_shape(name: str, tensor: Tensor, shape: tuple[int, ...]) -> str | None:
    """One sentence if an adapter returned another shape, else None."""
    if tuple(tensor.shape) == shape:
        return None
    return f"{name} has shape {list(tensor.shape)}, the adapter protocol wants {list(shape)}"


def compare_output(case: AttentionCase, out: Tensor, golden: Tensor, atol: float) -> Evidence:
    """Max-abs-diff of out against golden, both [total_q, num_qo_heads, head_dim_vo], under `atol`."""
    wrong_shape = check_shape("out", out, tuple(golden.shape))
    if wrong_shape:
        return Evidence("atol", False, {"atol": atol}, wrong_shape)
    by_head = largest_error(out, golden)
    worst, largest = _read(by_head.argmax(), by_head.max())
    place = row_place(case, *divmod(int(worst), case.num_qo_heads))
    measure: dict[str, Any] = {"atol": atol, "worst": place, "max_abs_diff": None}
    if not math.isfinite(largest):
        lost = ~torch.isfinite(out)
        rows = int(lost.flatten(1).any(1).sum())
        measure["not_finite"] = int(lost.sum())
        message = f"{rows} of {case.total_q} rows hold NaN or infinity, first at {say_place(place)}"
        if not rows:
            message = f"the reference itself is not finite, first at {say_place(place)}"
        return Evidence("atol", False, measure, message)
    return under_atol(place, largest, atol)


def under_atol(place: dict[str, Any], largest: float, atol: float) -> Evidence:
    """The flat comparison, once the largest error (finite) and its place are known."""
    measure = {"atol": atol, "worst": place, "max_abs_diff": largest}
    if largest <= atol:
        return Evidence("atol", True, measure)
    message = f"max-abs-diff {largest:.4g} is above atol {atol:g}, at {say_place(place)}"
    return Evidence("atol", False, measure, message)


def _read(*figures: Tensor) -> list[float]:
    """Scalars of one device as host numbers, in one go: each read waits for the device."""
    numbers: list[float] = torch.stack([figure.double() for figure in figures]).tolist()
    return numbers


def natural_lse(lse: Tensor, base: LseBase) -> Tensor:
    """fp64 natural-log LSE from an adapter's."""
    return lse.double() * LN2 if base is LseBase.LOG2 else lse.double()


def compare_lse(
    case: AttentionCase, lse: Tensor | None, golden: Tensor, tolerance: Tensor, base: LseBase, empty_row: EmptyRow
) -> Evidence:
    """LSE against golden's (natural), both [total_q, num_qo_heads], within `tolerance` of the same shape.

    A row that sees no key has golden LSE -inf and is judged by the adapter's declared `empty_row`.
    """
    if lse is None:
        return Evidence("lse", None, message=NO_LSE)
    wrong_shape = check_shape("lse", lse, tuple(golden.shape))
    if wrong_shape:
        return Evidence("lse", False, {}, wrong_shape)
    natural, expected, error = lse_error(lse, golden, base, empty_row)
    excess = error - tolerance
    worst, largest, most_over = _read(excess.argmax(), error.max(), excess.max())
    place = row_place(case, *divmod(int(worst), case.num_qo_heads))
    measure = {"max_lse_diff": finite(largest), "worst": place}
    if most_over <= 0:
        return Evidence("lse", True, measure)
    got, want = float(natural.flatten()[int(worst)]), float(expected.flatten()[int(worst)])
    message = f"LSE is {got:.6g}, should be {want:.6g} (natural log), at {say_place(place)}"
    return Evidence("lse", False, measure, message)


def lse_error(lse: Tensor, golden: Tensor, base: LseBase, empty_row: EmptyRow) -> tuple[Tensor, Tensor, Tensor]:
    """The natural LSE, what it should be, and |error| with NaN as infinite, all fp64 [total_q, num_qo_heads]."""
    natural = natural_lse(lse, base)
    empty = torch.isneginf(golden)
    expected = golden
    if empty_row is EmptyRow.ZERO_PLUS_INF:
        expected = torch.where(empty, torch.inf, golden)
    same = natural == expected  # infinities, whose difference is NaN
    error = torch.where(same, 0.0, (natural - expected).abs()).nan_to_num(nan=torch.inf, posinf=torch.inf)
    if empty_row is EmptyRow.UNSPECIFIED:
        error = torch.where(empty, 0.0, error)
    return natural, expected, error


def compare_bound(case: AttentionCase, out: Tensor, golden: Tensor, bounds: Tensor) -> Evidence:
    """Every element within its own derived bound: out, golden and bounds [total_q, num_qo_heads, head_dim_vo]."""
    wrong_shape = check_shape("out", out, tuple(golden.shape))
    if wrong_shape:
        return Evidence("bound", False, {}, wrong_shape)
    ratio = largest_ratio(out, golden, bounds)
    worst, largest, over = _read(ratio.argmax(), ratio.max(), (ratio > 1).any(1).sum())
    row, head = divmod(int(worst), case.num_qo_heads)
    place = row_place(case, row, head)
    measure: dict[str, Any] = {"ratio": finite(largest), "worst": place, "rows_over": int(over)}
    if largest <= 1:
        return Evidence("bound", True, measure)
    at = int(element_ratio(out[row, head], golden[row, head], bounds[row, head]).nan_to_num(nan=torch.inf).argmax())
    error = float(element_error(out[row, head, at], golden[row, head, at]))
    excess = f"error {error:.3g} over bound {float(bounds[row, head, at]):.3g}"
    message = f"{excess} at {say_place(place)}; {measure['rows_over']} of {case.total_q} rows are over their bound"
    return Evidence("bound", False, measure, message)
