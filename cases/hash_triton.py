"""The Triton kernel of cases/hash_kernels.py; importing it needs Triton."""

# mypy: disable-error-code="import-not-found, import-untyped, untyped-decorator, no-untyped-def"
# No `from __future__ import annotations`: Triton reads the annotations of its kernels.
import triton
import triton.language as tl


@triton.jit
def _mix(x):
    # SplitMix64's finaliser on unsigned integers, whose shifts are logical.
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return x ^ (x >> 31)


@triton.jit
def key_of(request, position, stream):
    """counter_hash.row_keys, as unsigned integers."""
    key = _mix(request * 0x9E3779B97F4A7C15 + stream.to(tl.int64).to(tl.uint64))
    return _mix(key + position * 0x9E3779B97F4A7C15)


@triton.jit
def _bits(key, column):
    return _mix(key + (column + 1).to(tl.uint64) * 0x9E3779B97F4A7C15)


@triton.jit
def normal_of(key, column):
    """counter_hash.normal of an unsigned row key."""
    x = _bits(key, column)
    total = (x & 0xFFFF) + ((x >> 16) & 0xFFFF) + ((x >> 32) & 0xFFFF) + (x >> 48)
    # The integer is exact in fp32, and one product rounds once (SUM_OF_FOUR_* of hash_kernels).
    return (total.to(tl.int32) - 131070).to(tl.float32) * 2.6428997921303014e-05


@triton.jit
def sign_of(key, column):
    """counter_hash.signs of an unsigned row key."""
    return tl.where(_bits(key, column) >> 63 == 1, -1.0, 1.0)


@triton.jit(do_not_specialize=["count"])
def draw(rows, out, count, columns, NORMAL: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """out[i, j] for i < count, j < columns, row keys rows[i]: counter_hash.normal, or signs, rounded to its dtype."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (row < count)[:, None] & (column < columns)[None, :]
    key = tl.load(rows + row, mask=row < count, other=0).to(tl.uint64)[:, None]
    at = column.to(tl.int64)[None, :]
    value = normal_of(key, at) if NORMAL else sign_of(key, at)
    into = out + row.to(tl.int64)[:, None] * columns + column[None, :]
    tl.store(into, value.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["stream", "count"])
def row_keys(request, position, out, stream, count, BLOCK: tl.constexpr):
    """out[i] for i < count: counter_hash.row_keys of (request[i], position[i]) in a stream."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    of_request = tl.load(request + at, mask=inside, other=0).to(tl.uint64)
    of_position = tl.load(position + at, mask=inside, other=0).to(tl.uint64)
    tl.store(out + at, key_of(of_request, of_position, stream).to(tl.int64), mask=inside)


@triton.jit(do_not_specialize=["count", "requests"])
def packed_row_keys(request, table, out, count, requests, BLOCK: tl.constexpr):
    """out[i] for i < count: counter_hash.row_keys of packed row i, which is of request[i].

    table: int64 [4, requests]: packed row to begin with, its position, the request's number in its case, stream key.
    """
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    of = table + tl.load(request + at, mask=inside, other=0)
    position = at - tl.load(of, mask=inside, other=0) + tl.load(of + requests, mask=inside, other=0)
    number, stream = (
        tl.load(of + 2 * requests, mask=inside, other=0),
        tl.load(of + 3 * requests, mask=inside, other=0),
    )
    tl.store(out + at, key_of(number.to(tl.uint64), position.to(tl.uint64), stream).to(tl.int64), mask=inside)
