"""Errors and ratios of rows by the fused kernel are those that harness/judging/row_errors.py defines."""

from __future__ import annotations

import pytest
import torch

from harness.judging.row_errors import example, plain_row_errors
from tests.fused import run_script

COMPARE = """
import itertools, sys
import torch
from cases import AttentionCase, Request
from cases.recipes import make_data
from harness.judging import row_errors, row_errors_triton
from references.error_bounds import UnitTerms, row_factors, unit_terms
from references.golden import golden_attention
from references.traits import KernelTraits

device, dtypes = sys.argv[1], sys.argv[2:]
count = 0


def compare(*given):
    global count
    got = row_errors.fused_row_errors(row_errors_triton, *given)
    torch.testing.assert_close(got, row_errors.plain_row_errors(*given), rtol=1e-9, atol=0)
    assert got.isinf().any() or not given[0].isnan().any()
    count += 1


for dim, flags in itertools.product((1, 40, 64), itertools.product((False, True), repeat=3)):
    compare(*row_errors.example(device, max(dim, 6), UnitTerms(2.0**-11, *flags)))
for dtype, legs in itertools.product(dtypes, (1, 2, 3)):
    case = AttentionCase(
        requests=(Request(40, 5), Request(0, 9), Request(7, 0)), num_qo_heads=4, num_kv_heads=2, head_dim_vo=96,
        dtype=dtype, kv_dtype=dtype, sinks=True, logits_soft_cap=9.0,
    )
    traits = KernelTraits(merge_legs=legs, rounded_splits=legs == 1)
    golden = golden_attention(case, make_data(case, device), moments=True)
    terms, factors = unit_terms(case, traits), row_factors(case, golden.moments, traits)
    given = (golden.out.to(getattr(torch, dtype)), golden.out, golden.moments, factors, terms)
    compare(*given)
    assert 0 < row_errors.plain_row_errors(*given)[1].max() < 1
print("compared", count)
"""


def test_triton_interpreted_on_a_cpu() -> None:
    run_script(COMPARE, "cpu", "float16", interpreted=True)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="not run: needs a CUDA GPU")
def test_the_same_on_a_gpu() -> None:
    run_script(COMPARE, "cuda", "bfloat16", "float16", "float32")


def test_what_is_lost_is_infinite_and_what_is_right_where_nothing_is_seen_is_zero() -> None:
    error, ratio = plain_row_errors(*example("cpu"))
    assert error[3, 1] == torch.inf
    assert ratio[3, 1] == torch.inf
    assert error[0, 0] == 0
    assert ratio[0, 0] == 0
    assert 0 < error[0, 1] < torch.inf
    assert ratio[0, 1] == torch.inf, "a row that sees nothing has no room for error"
    others = torch.ones_like(error, dtype=torch.bool)
    others[0] = others[3, 1] = False
    assert bool((error[others] < 0.02).all())
    assert bool((ratio[others] > 0).all())
