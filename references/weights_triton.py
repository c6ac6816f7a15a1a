"""The Triton kernel of references/weights.py; importing it needs Triton."""

# mypy: disable-error-code="import-not-found, import-untyped, untyped-decorator, no-untyped-def"
# No `from __future__ import annotations`: Triton reads the annotations of its kernels.
import triton
import triton.language as tl

BLOCK = tl.constexpr(1024)


@triton.jit(do_not_specialize=["count", "keys", "rows_of_head", "rows", "cut"])
def weigh(s, shift, p_squared, sums, count, keys, rows_of_head, rows, cut, SQUARES: tl.constexpr):
    """One row of scores: s = exp(s - shift), p_squared = its square, and sums of both; sums: [3, count]."""
    row = tl.program_id(0).to(tl.int64)
    largest = tl.load(shift + row // rows_of_head * rows + row % rows)
    leg = tl.zeros((BLOCK,), dtype=tl.float64)
    rest = tl.zeros((BLOCK,), dtype=tl.float64)
    p2 = tl.zeros((BLOCK,), dtype=tl.float64)
    begin = 0
    while begin < keys:
        key = begin + tl.arange(0, BLOCK)
        inside = key < keys
        at = row * keys + key
        p = tl.exp(tl.load(s + at, mask=inside, other=float("-inf")) - largest)
        tl.store(s + at, p, mask=inside)
        leg += tl.where(key < cut, p, 0.0)
        rest += tl.where(key < cut, 0.0, p)
        if SQUARES:
            square = p * p
            tl.store(p_squared + at, square, mask=inside)
            p2 += square
        begin += BLOCK
    tl.store(sums + row, tl.sum(leg, 0))
    tl.store(sums + count + row, tl.sum(rest, 0))
    if SQUARES:
        tl.store(sums + 2 * count + row, tl.sum(p2, 0))
