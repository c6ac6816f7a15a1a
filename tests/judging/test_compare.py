"""Comparison: NaN never passes, the worst place is named, LSE conventions are converted."""

import math

import pytest
import torch

from cases import AttentionCase, Request
from cases.recipes import make_data
from harness.adapters.protocol import EmptyRow, LseBase
from harness.judging.compare import compare_lse, compare_output
from harness.judging.tolerances import lse_tolerance
from references.golden import golden_attention

CASE = AttentionCase(requests=(Request(4, 2), Request(0, 3)), num_qo_heads=4, num_kv_heads=2)
GOLDEN = golden_attention(CASE, make_data(CASE, "cpu"))
TOLERANCE = lse_tolerance(GOLDEN.lse, torch.zeros_like(GOLDEN.lse))


def test_right_output_passes() -> None:
    assert compare_output(CASE, GOLDEN.out.to(torch.bfloat16), GOLDEN.out, 2e-2).passed


def test_all_zero_output_fails() -> None:
    assert compare_output(CASE, torch.zeros_like(GOLDEN.out), GOLDEN.out, 2e-2).passed is False


@pytest.mark.parametrize("lost", [float("nan"), float("inf"), float("-inf")])
def test_one_lost_element_fails_and_is_placed(lost: float) -> None:
    out = GOLDEN.out.clone()
    out[3, 1, 7] = lost
    evidence = compare_output(CASE, out, GOLDEN.out, 1e9)
    assert evidence.passed is False
    assert evidence.measure["worst"] == {"request": 1, "position": 1, "row": 3, "head": 1}
    assert evidence.measure["max_abs_diff"] is None


def test_worst_place_is_named() -> None:
    out = GOLDEN.out.clone()
    out[1, 2, 5] += 0.5
    evidence = compare_output(CASE, out, GOLDEN.out, 2e-2)
    assert evidence.measure["max_abs_diff"] == pytest.approx(0.5)
    assert "request 0, query position 5, head 2" in evidence.message


def test_lse_is_converted_by_its_base() -> None:
    log2 = GOLDEN.lse / math.log(2)
    arguments = (GOLDEN.lse, TOLERANCE, LseBase.LOG2, EmptyRow.ZERO_MINUS_INF)
    assert compare_lse(CASE, log2, *arguments).passed
    assert compare_lse(CASE, GOLDEN.lse, *arguments).passed is False


def test_lse_off_by_one_key_of_six_fails() -> None:
    off = GOLDEN.lse.clone()
    off[1, 0] += 2e-3
    assert compare_lse(CASE, off, GOLDEN.lse, TOLERANCE, LseBase.NATURAL, EmptyRow.ZERO_MINUS_INF).passed is False


@pytest.mark.parametrize(
    ("declared", "given", "passed"),
    [
        (EmptyRow.ZERO_MINUS_INF, -math.inf, True),
        (EmptyRow.ZERO_MINUS_INF, math.inf, False),
        (EmptyRow.ZERO_PLUS_INF, math.inf, True),
        (EmptyRow.ZERO_PLUS_INF, -math.inf, False),
        (EmptyRow.ZERO_MINUS_INF, math.nan, False),
        (EmptyRow.UNSPECIFIED, -5e4, True),
    ],
)
def test_empty_rows_follow_the_declaration(declared: EmptyRow, given: float, passed: bool) -> None:
    golden, lse = GOLDEN.lse.clone(), GOLDEN.lse.clone()
    golden[2], lse[2] = -math.inf, given
    assert compare_lse(CASE, lse, golden, TOLERANCE, LseBase.NATURAL, declared).passed is passed
