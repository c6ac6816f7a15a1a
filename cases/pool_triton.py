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
    BLOCK: tl.constexpr,
):
    """Every element of a pool: of a cached key its value, of another owned slot a stale one, else `outside`.

    Elements are taken in the order (page, offset in it, head, column), whatever the layout.
    """
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    width = heads * dim
    slot, column = at // width, at % width
    page, offset = slot // page_size, slot % page_size
    request = tl.load(owner + page, mask=inside, other=-1)
    owned = request >= 0
    position = tl.load(turn + page, mask=owned, other=0).to(tl.int64) * page_size + offset
    cached = owned & (position < tl.load(prefix + request, mask=owned, other=0))
    key = tl.load(start + request, mask=owned, other=0).to(tl.int64) + position
    value = tl.load(rows + key * width + column, mask=cached, other=0.0)
    if KIND == 0:
        stale = tl.full((BLOCK,), outside, tl.float32)
    else:
        hashed = key_of(request.to(tl.uint64), position.to(tl.uint64), stream)
        stale = normal_of(hashed, column) if KIND == 1 else sign_of(hashed, column) * poison_v
    unused = tl.where(owned, stale, outside).to(value.dtype)
    into = page * page_size * width + column // dim * head_stride + offset * offset_stride + column % dim
    tl.store(pool + into, tl.where(cached, value, unused), mask=inside)
