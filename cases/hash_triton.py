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


@triton.jit(do_not_specialize=["count", "columns"])
def draw(rows, out, count, columns, NORMAL: tl.constexpr, BLOCK: tl.constexpr):
    """out[i] for i < count, row keys rows[i // columns]: counter_hash.normal, or signs."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    row = at // columns
    key = tl.load(rows + row, mask=inside, other=0).to(tl.uint64)
    counter = (at - row * columns + 1).to(tl.uint64)
    x = _mix(key + counter * 0x9E3779B97F4A7C15)
    if NORMAL:
        total = (x & 0xFFFF) + ((x >> 16) & 0xFFFF) + ((x >> 32) & 0xFFFF) + (x >> 48)
        # The integer is exact in fp32, and one product rounds once (SUM_OF_FOUR_* of hash_kernels).
        value = (total.to(tl.int32) - 131070).to(tl.float32) * 2.6428997921303014e-05
    else:
        value = tl.where(x >> 63 == 1, -1.0, 1.0)
    tl.store(out + at, value, mask=inside)


@triton.jit(do_not_specialize=["stream", "count"])
def row_keys(request, position, out, stream, count, BLOCK: tl.constexpr):
    """out[i] for i < count: counter_hash.row_keys of (request[i], position[i]) in a stream."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    of_request = tl.load(request + at, mask=inside, other=0).to(tl.uint64)
    of_position = tl.load(position + at, mask=inside, other=0).to(tl.uint64)
    key = _mix(of_request * 0x9E3779B97F4A7C15 + stream.to(tl.int64).to(tl.uint64))
    key = _mix(key + of_position * 0x9E3779B97F4A7C15)
    tl.store(out + at, key.to(tl.int64), mask=inside)
