"""The Triton kernel of cases/pool_kernels.py; importing it needs Triton."""

# mypy: disable-error-code="import-not-found, import-untyped, untyped-decorator, no-untyped-def"
# No `from __future__ import annotations`: Triton reads the annotations of its kernels.
import triton
import triton.language as tl

from cases.hash_triton import key_of, normal_of, sign_of


@triton.jit(do_not_specialize=["stream", "count", "page_size", "heads", "dim", "head_stride", "offset_stride"])
def fill_pool(
    rows,
    owner,
    turn,
    prefix,
    start,
    pool,
    stream,
    count,
    page_size,
    heads,
    dim,
    head_stride,
    offset_stride,
    outside,
    poison_v,
    KIND: tl.constexpr,
    SLOTS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """`count` slots of a pool, SLOTS x COLUMNS at a time: of a cached key its value, of another owned slot a stale one,
    else `outside`. A column is (head, d), whatever the layout."""
    slot = tl.program_id(0) * SLOTS + tl.arange(0, SLOTS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    width = heads * dim
    is_slot, is_column = slot < count, column < width
    page, offset = slot // page_size, slot % page_size
    request = tl.load(owner + page, mask=is_slot, other=-1)
    owned = request >= 0
    position = tl.load(turn + page, mask=owned, other=0) * page_size + offset
    cached = owned & (position < tl.load(prefix + request, mask=owned, other=0))
    key = (tl.load(start + request, mask=owned, other=0) + position).to(tl.int64)
    value = tl.load(rows + key[:, None] * width + column[None, :], mask=cached[:, None] & is_column[None, :], other=0.0)
    stale = tl.full((SLOTS, COLUMNS), outside, tl.float32)
    # Most blocks hold cached keys alone, and a hash takes longer than they do.
    if KIND != 0 and tl.max((owned & (cached == 0)).to(tl.int32), 0) > 0:
        hashed = key_of(request.to(tl.uint64), position.to(tl.uint64), stream)[:, None]
        at = column.to(tl.int64)[None, :]
        stale = normal_of(hashed, at) if KIND == 1 else sign_of(hashed, at) * poison_v
    unused = tl.where(owned[:, None], stale, outside).to(value.dtype)
    page_start = page.to(tl.int64) * page_size * width + offset * offset_stride
    into = page_start[:, None] + (column // dim * head_stride + column % dim)[None, :]
    tl.store(pool + into, tl.where(cached[:, None], value, unused), mask=is_slot[:, None] & is_column[None, :])
