"""The largest error of every row and head, and the largest over its bound; NaN never passes.

In torch that is some thirty passes over arrays of the output's size, which on a GPU take longer than most kernels under
test. There one Triton kernel does them in one pass, where there is Triton; what is written in torch is its definition.
"""

from __future__ import annotations

import functools
import math
import warnings
from typing import Any

import torch
from torch import Tensor

from references.by_rows import row_slices
from references.error_bounds import C1, RowFactors, UnitTerms, bounds_of
from references.golden import GoldenOutput
from references.moments import CANCELLATION, RowMoments

BLOCK = 512  # numbers that a program looks at


def row_errors(out: Tensor, golden: GoldenOutput, factors: RowFactors, terms: UnitTerms) -> Tensor:
    """fp64 [2, total_q, num_qo_heads]: `largest_error` and `largest_ratio` of out [total_q, num_qo_heads, dv].

    `golden` has moments.
    """
    assert golden.moments is not None
    kernels = _kernels() if out.device.type == "cuda" else None
    if kernels is not None:
        return fused_row_errors(kernels, out, golden.out, golden.moments, factors, terms)
    return plain_row_errors(out, golden.out, golden.moments, factors, terms)


def plain_row_errors(out: Tensor, golden: Tensor, moments: RowMoments, factors: RowFactors, terms: UnitTerms) -> Tensor:
    """The definition, in torch."""
    bounds = bounds_of(golden, moments, factors, terms)
    return torch.stack([largest_error(out, golden), largest_ratio(out, golden, bounds)])


def fused_row_errors(
    kernels: Any, out: Tensor, golden: Tensor, moments: RowMoments, factors: RowFactors, terms: UnitTerms
) -> Tensor:
    """The same by the kernel of row_errors_triton.py."""
    *shape, dim = golden.shape
    count = math.prod(shape)
    errors = torch.empty((2, *shape), dtype=torch.float64, device=golden.device)
    if not golden.numel():
        return errors.zero_()
    of_rows = torch.stack(
        [moments.mass, moments.p2, factors.p, factors.size, factors.magnitude, factors.constant]
    )  # contiguous, whatever they are
    numbers = _constants(terms.unit, str(golden.device))
    columns = 1 << (dim - 1).bit_length()
    rows = max(1, BLOCK // columns)
    vectors = (each.contiguous() for each in (out, golden, moments.pv2, moments.p2v, moments.p2v2, moments.leg))
    kernels.row_errors[(-(-count // rows),)](
        *vectors, of_rows, errors, count, *numbers,
        dim, rows, columns, terms.two_legs, terms.splits, terms.dequantised,
    )  # fmt: skip
    return errors


@functools.lru_cache(maxsize=8)
def _constants(unit: float, device: str) -> tuple[Tensor, ...]:
    """C1, the slack of cancellation and the output's roundoff, fp64 [1]."""
    return tuple(torch.tensor([each], dtype=torch.float64).to(device) for each in (C1, CANCELLATION, unit))


@functools.cache
def _kernels() -> Any:
    """The module of kernels if it computes what is defined here, else None: no Triton, or no compiler for it."""
    try:
        from harness.judging import row_errors_triton
    except ImportError:
        return None
    given = example("cuda")
    try:
        made = fused_row_errors(row_errors_triton, *given)
    except Exception as problem:  # whatever Triton's toolchain raises; torch computes the same
        warnings.warn(f"judging without fused kernels: {type(problem).__name__}: {problem}", stacklevel=2)
        return None
    # A fused multiply-add rounds once where two steps round twice, under a sum that may cancel to its 2^-18th.
    torch.testing.assert_close(made, plain_row_errors(*given), rtol=1e-9, atol=0)
    return row_errors_triton


def example(
    device: str, dim: int = 40, terms: UnitTerms | None = None
) -> tuple[Tensor, Tensor, RowMoments, RowFactors, UnitTerms]:
    """Something to compute, by default with every term: a row that sees nothing, one that is wrong there, and a NaN."""
    generator = torch.Generator().manual_seed(5)

    def drawn(*shape: int) -> Tensor:
        return torch.rand(shape, dtype=torch.float64, generator=generator)

    exact, leg = drawn(7, 3, dim) * 2 - 1, drawn(7, 3, dim) - 0.5
    mass, p2, other, p, size, magnitude, constant = drawn(7, 7, 3)
    pv2, p2v, p2v2 = drawn(3, 7, 3, dim).float()
    factors = [each * 1e-2 for each in (p, size, magnitude, constant)]
    for each in (exact, leg, mass, p2, pv2, p2v, p2v2, *factors):
        each[0] = 0
    out = (exact + (drawn(7, 3, dim) - 0.5) * 1e-2).to(torch.bfloat16)
    out[0, 0], out[3, 1, 5] = 0, torch.nan
    moments = (each.to(device) for each in (mass, p2, other, other, other, other, pv2, p2v, p2v2, leg))
    terms = UnitTerms(2.0**-8, two_legs=True, splits=True, dequantised=True) if terms is None else terms
    return (
        out.to(device),
        exact.to(device),
        RowMoments(**dict(zip(RowMoments.__dataclass_fields__, moments, strict=True))),
        RowFactors(**dict(zip(RowFactors.__dataclass_fields__, (each.to(device) for each in factors), strict=True))),
        terms,
    )


def largest_error(out: Tensor, golden: Tensor) -> Tensor:
    """fp64 [total_q, num_qo_heads]: the largest |out - golden| of each row and head; infinite if one is not finite."""
    by_head = torch.cat([element_error(out[at], golden[at]).amax(-1) for at in row_slices(out)])
    return by_head.nan_to_num(nan=torch.inf, posinf=torch.inf)


def largest_ratio(out: Tensor, golden: Tensor, bounds: Tensor) -> Tensor:
    """fp64 [total_q, num_qo_heads]: the largest error over its bound; NaN counts as infinite."""
    ratio = torch.cat([element_ratio(out[at], golden[at], bounds[at]).amax(-1) for at in row_slices(out)])
    return ratio.nan_to_num(nan=torch.inf, posinf=torch.inf)  # amax passes a NaN on


def element_error(out: Tensor, golden: Tensor) -> Tensor:
    return (out - golden).abs_()


def element_ratio(out: Tensor, golden: Tensor, bounds: Tensor) -> Tensor:
    """Error over bound; 0 over 0 is 0, as is where a row that sees no key is right."""
    error = element_error(out, golden)
    return torch.where(error == 0, 0.0, error / bounds)
