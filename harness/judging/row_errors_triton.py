"""The Triton kernel of harness/judging/row_errors.py; importing it needs Triton."""

# mypy: disable-error-code="import-not-found, import-untyped, untyped-decorator, no-untyped-def"
# No `from __future__ import annotations`: Triton reads the annotations of its kernels.
import triton
import triton.language as tl

NAN = tl.constexpr(tl.PropagateNan.ALL)  # as torch does; a bound that is NaN must not pass


@triton.jit(do_not_specialize=["count"])
def row_errors(
    out, golden, pv2, p2v, p2v2, leg, factors, errors, count, c1, slack, unit,
    DIM: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
    TWO_LEGS: tl.constexpr, SPLITS: tl.constexpr, DEQUANTISED: tl.constexpr,
):  # fmt: skip
    """errors[0, row]: the largest |out - golden| of each row of DIM; errors[1, row]: the largest over its bound
    (error_bounds._row_bounds and RowMoments, statistical); NaN counts as infinite.

    factors: fp64 [6, count]: mass, sum p^2, and the RowFactors; c1, slack, unit: fp64 [1], as a scalar would be fp32
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    is_row = row < count
    column = tl.arange(0, COLUMNS)
    inside = is_row[:, None] & (column < DIM)[None, :]
    at = row.to(tl.int64)[:, None] * DIM + column[None, :]
    mass = tl.load(factors + row, mask=is_row, other=0.0)[:, None]
    p2 = tl.load(factors + count + row, mask=is_row, other=0.0)[:, None]
    of_p = tl.load(factors + 2 * count + row, mask=is_row, other=0.0)[:, None]
    of_size = tl.load(factors + 3 * count + row, mask=is_row, other=0.0)[:, None]
    of_magnitude = tl.load(factors + 4 * count + row, mask=is_row, other=0.0)[:, None]
    constant = tl.load(factors + 5 * count + row, mask=is_row, other=0.0)[:, None]
    statistical, lost, once = tl.load(c1), tl.load(slack), tl.load(unit)
    exact = tl.load(golden + at, mask=inside, other=0.0)
    size, square = tl.abs(exact), exact * exact

    # RowMoments.squared_deviation, and squared_spread
    linear = tl.load(pv2 + at, mask=inside, other=0.0).to(tl.float64)
    deviation = tl.maximum(linear + square * (mass - 2), 0.0, propagate_nan=NAN) + lost * (linear + square * (mass + 2))
    second = tl.load(p2v2 + at, mask=inside, other=0.0).to(tl.float64)
    cross = tl.load(p2v + at, mask=inside, other=0.0).to(tl.float64) * exact
    found = second + square * p2
    spread = tl.maximum(found - 2 * cross, 0.0, propagate_nan=NAN) + lost * (found + 2 * tl.abs(cross))
    magnitude = tl.sqrt(linear * (mass * (1 + lost)))

    smaller = tl.minimum(deviation * mass, statistical * statistical * spread, propagate_nan=NAN)
    bound = tl.sqrt(smaller) * of_p
    bound += size * of_size + magnitude * of_magnitude + constant
    if TWO_LEGS:
        of_leg = tl.load(leg + at, mask=inside, other=0.0)
        bound += once * tl.maximum(size, tl.abs(exact - 2 * of_leg), propagate_nan=NAN)
    if SPLITS:
        bound += once * tl.minimum(magnitude, size + statistical * tl.sqrt(second), propagate_nan=NAN)
    if DEQUANTISED:
        bound += once * tl.minimum(magnitude, statistical * tl.sqrt(second), propagate_nan=NAN)

    error = tl.abs(tl.load(out + at, mask=inside, other=0.0).to(tl.float64) - exact)
    error = tl.where(error == error, error, float("inf"))
    ratio = tl.where(error == 0, 0.0, error / bound)
    ratio = tl.where(ratio == ratio, ratio, float("inf"))
    tl.store(errors + row, tl.max(tl.where(inside, error, 0.0), 1), mask=is_row)
    tl.store(errors + count + row, tl.max(tl.where(inside, ratio, 0.0), 1), mask=is_row)
