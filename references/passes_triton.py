"""The Triton kernels of references/fused_passes.py; importing it needs Triton."""

# mypy: disable-error-code="import-not-found, import-untyped, untyped-decorator, no-untyped-def"
# No `from __future__ import annotations`: Triton reads the annotations of its kernels.
import triton
import triton.language as tl

# Integers, and pointers into one packed tensor of indices, differ from chunk to chunk: nothing is compiled for them.
_INDEX = ["first", "last", "low", "middle", "high"]


@triton.jit
def key_of(column, prefix, low, middle, high):
    """Packed key of a column of a tile; -1 for padding."""
    key = tl.where(column < prefix, low + column, middle - prefix + column)
    return tl.where(key < tl.where(column < prefix, middle, high), key, -1)


@triton.jit
def interval_of(row, first, last, low, middle, high, splits, heads, rows, of_tile):
    """The interval of packed keys that a row of scores sees, and where the keys of its tile lie."""
    tile = row // (rows * splits * heads)
    query = tile * of_tile + row % rows % of_tile
    of_low, of_middle, of_high = tl.load(low + tile), tl.load(middle + tile), tl.load(high + tile)
    return tl.load(first + query), tl.load(last + query), of_low, of_middle, of_high


@triton.jit(do_not_specialize=[*_INDEX, "blocks", "columns", "begin", "prefix"])
def gather(
    k, v, low, middle, high, out_k, out_v, sizes, blocks, columns, begin, prefix,
    HEADS: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, ROWS: tl.constexpr,
    WIDE_K: tl.constexpr, WIDE_V: tl.constexpr, SQUARES: tl.constexpr, SIZES: tl.constexpr,
):  # fmt: skip
    """ROWS columns of one tile and kv head, which has `blocks` of them; sizes: fp64 [2, tiles * heads, blocks], the
    largest |k| and |v_j| of these."""
    # One dimension: a grid's others end at 65535, and many short requests have more tiles and heads.
    block, of = tl.program_id(0) % blocks, (tl.program_id(0) // blocks).to(tl.int64)
    tile, head = of // HEADS, of % HEADS
    local = block * ROWS + tl.arange(0, ROWS)
    first = tl.load(low + tile)
    key = key_of(begin + local, prefix, first, tl.load(middle + tile), tl.load(high + tile))
    key = tl.where(key < 0, first, key)
    inside = (local < columns)[:, None]
    row, place = (key * HEADS + head)[:, None], (of * columns + local)[:, None]
    at = tl.arange(0, WIDE_K)[None, :]
    mask = inside & (at < DK)
    x = tl.load(k + row * DK + at, mask=mask, other=0.0).to(tl.float64)
    tl.store(out_k + place * DK + at, x, mask=mask)
    here = tl.arange(0, WIDE_V)[None, :]
    mask_v = inside & (here < DV)
    y = tl.load(v + row * DV + here, mask=mask_v, other=0.0).to(tl.float64)
    if SQUARES:
        tl.store(out_v + place * (2 * DV) + here, y, mask=mask_v)
        tl.store(out_v + place * (2 * DV) + DV + here, y * y, mask=mask_v)
    else:
        tl.store(out_v + place * DV + here, y, mask=mask_v)
    if SIZES:
        tl.store(sizes + tl.program_id(0), tl.sqrt(tl.max(tl.sum(x * x, 1), 0)))
        tl.store(sizes + tl.num_programs(0) + tl.program_id(0), tl.max(tl.max(tl.abs(y), 1), 0))


@triton.jit(do_not_specialize=[*_INDEX, "columns", "splits", "heads", "rows", "of_tile", "begin", "prefix"])
def peaks(
    s, first, last, low, middle, high, found, columns, splits, heads, rows, of_tile, begin, prefix,
    SIZES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One row of scores: the largest visible one, and the largest |s|; found: fp64 [1 or 2, rows of all]."""
    row = tl.program_id(0).to(tl.int64)
    start = begin + row // rows % splits * columns
    seen_from, seen_to, of_low, of_middle, of_high = interval_of(
        row, first, last, low, middle, high, splits, heads, rows, of_tile
    )
    top = tl.full((BLOCK,), float("-inf"), dtype=tl.float64)
    size = tl.zeros((BLOCK,), dtype=tl.float64)
    at = 0
    while at < columns:
        local = at + tl.arange(0, BLOCK)
        key = key_of(start + local, prefix, of_low, of_middle, of_high)
        seen = (local < columns) & (key >= seen_from) & (key < seen_to)
        x = tl.load(s + row * columns + local, mask=seen, other=float("-inf"))
        top = tl.maximum(top, x)
        if SIZES:
            size = tl.maximum(size, tl.where(seen, tl.abs(x), 0.0))
        at += BLOCK
    tl.store(found + row, tl.max(top, 0))
    if SIZES:
        tl.store(found + tl.num_programs(0) + row, tl.max(size, 0))


@triton.jit(do_not_specialize=[*_INDEX, "columns", "splits", "heads", "rows", "of_tile", "begin", "prefix", "cut"])
def weigh(
    s, top, first, last, low, middle, high, p_squared, sums, columns, splits, heads, rows, of_tile, begin, prefix, cut,
    SQUARES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One row of scores: s = exp(s - top) where visible, else 0; p_squared = its square; sums of both, [3, rows of
    all]: before the cut, from it, of the squares."""
    row = tl.program_id(0).to(tl.int64)
    start = begin + row // rows % splits * columns
    seen_from, seen_to, of_low, of_middle, of_high = interval_of(
        row, first, last, low, middle, high, splits, heads, rows, of_tile
    )
    largest = tl.load(top + row // (rows * splits) * rows + row % rows)
    largest = tl.where(largest == float("-inf"), 0.0, largest)  # a row with no key yet: exp(-inf), not NaN
    leg = tl.zeros((BLOCK,), dtype=tl.float64)
    rest = tl.zeros((BLOCK,), dtype=tl.float64)
    p2 = tl.zeros((BLOCK,), dtype=tl.float64)
    at = 0
    while at < columns:
        local = at + tl.arange(0, BLOCK)
        key = key_of(start + local, prefix, of_low, of_middle, of_high)
        inside = local < columns
        seen = inside & (key >= seen_from) & (key < seen_to)
        place = row * columns + local
        p = tl.exp(tl.load(s + place, mask=seen, other=float("-inf")) - largest)
        tl.store(s + place, p, mask=inside)
        leg += tl.where(local < cut, p, 0.0)
        rest += tl.where(local < cut, 0.0, p)
        if SQUARES:
            square = p * p
            tl.store(p_squared + place, square, mask=inside)
            p2 += square
        at += BLOCK
    tl.store(sums + row, tl.sum(leg, 0))
    tl.store(sums + tl.num_programs(0) + row, tl.sum(rest, 0))
    if SQUARES:
        tl.store(sums + 2 * tl.num_programs(0) + row, tl.sum(p2, 0))
