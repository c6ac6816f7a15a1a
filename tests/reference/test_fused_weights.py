"""The fused kernel of golden attention computes what references/weights.py defines."""

from __future__ import annotations

import pytest
import torch

from tests.fused import run_script

COMPARE = """
import sys
import torch
from references import weights, weights_triton

device = sys.argv[1]
generator = torch.Generator().manual_seed(1)
for shape, cut in (((2, 3, 1, 5, 37), 11), ((1, 2, 3, 4, 1500), 1500), ((1, 1, 1, 1, 1), 0), ((2, 1, 4, 6, 1024), 0)):
    s = (torch.randn(shape, dtype=torch.float64, generator=generator) * 40).to(device)
    s[..., ::5] = -torch.inf
    s[0, 0, 0, 0] = -torch.inf  # a row with no key
    shift = s.amax((2, 4), keepdim=True).clamp(min=torch.finfo(torch.float64).min)
    for squares in (True, False):
        expected = weights.plain_weights(s.clone(), shift, cut, squares)
        got = weights.fused_weights(weights_triton, s.clone(), shift, cut, squares)
        for a, b in zip(expected, got, strict=True):
            assert (a is None) == (b is None)
            if a is not None:
                torch.testing.assert_close(a, b, rtol=1e-13, atol=0)
print("compared")
"""


def test_triton_interpreted_on_a_cpu() -> None:
    run_script(COMPARE, "cpu", interpreted=True)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="not run: needs a CUDA GPU")
def test_on_a_gpu() -> None:
    run_script(COMPARE, "cuda")
