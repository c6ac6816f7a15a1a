"""The Triton kernel of cases/pool_kernels.py; importing it needs Triton."""

# mypy: disable-error-code="import-not-found, import-untyped, untyped-decorator, no-untyped-def"
# No `from __future__ import annotations`: Triton reads the annotations of its kernels.
import triton
import triton.language as tl

from cases.hash_triton import key_of, normal_of, sign_of

# Of a case, int64: slots of its pool, slots of a page, first row in the pool of all, rows from a page's slot to the
# next and from a head to the next, first page in the tables of pages, stream of stale rows, what they hold.
FIELDS = tl.constexpr(8)
FINITE = tl.constexpr(1)
NAN = tl.constexpr(2)


@triton.jit
def fill_pools(
    rows, owner, turn, prefix, start, number, cases, pool, poison,
    SIGNS: tl.constexpr, HEADS: tl.constexpr, DIM: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """ROWS rows of DIM numbers of the pool of case program_id(1): of a cached key its value, of another owned slot a
    stale one, else zero or NaN. A row is a (slot, head); everything is counted in rows, so that a compiler knows how
    addresses are aligned."""
    case = cases + tl.program_id(1) * FIELDS
    slots = tl.load(case).to(tl.int32)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    if tl.program_id(0) * ROWS < slots * HEADS:
        page_size = tl.load(case + 1).to(tl.int32)
        level = tl.load(case + 7)
        slot, head = row // HEADS, row % HEADS
        is_row = slot < slots
        page, offset = slot // page_size, slot % page_size
        of_page = tl.load(case + 5).to(tl.int32) + page
        request = tl.load(owner + of_page, mask=is_row, other=-1)
        owned = request >= 0
        position = tl.load(turn + of_page, mask=owned, other=0) * page_size + offset
        cached = owned & (position < tl.load(prefix + request, mask=owned, other=0))
        key = tl.load(start + request, mask=owned, other=0) + position
        column = tl.arange(0, COLUMNS)
        is_column = column < DIM
        source = (key * HEADS + head).to(tl.int64)[:, None] * DIM + column[None, :]
        value = tl.load(rows + source, mask=cached[:, None] & is_column[None, :], other=0.0)
        outside = tl.where(level == 0, 0.0, float("nan"))
        unused = tl.zeros((ROWS, COLUMNS), tl.float32) + tl.where(level == NAN, float("nan"), 0.0)
        # Most blocks hold cached keys alone, and a hash takes longer than they do.
        if (level == FINITE) & (tl.max((owned & (cached == 0)).to(tl.int32), 0) > 0):
            of_request = tl.load(number + request, mask=owned, other=0)
            hashed = key_of(of_request.to(tl.uint64), position.to(tl.uint64), tl.load(case + 6))[:, None]
            at = head.to(tl.int64)[:, None] * DIM + column[None, :]
            unused = sign_of(hashed, at) * poison if SIGNS else normal_of(hashed, at)
        unused = tl.where(owned[:, None], unused, outside).to(value.dtype)
        in_pool = tl.load(case + 2) + page.to(tl.int64) * page_size * HEADS + offset * tl.load(case + 3)
        into = (in_pool + head * tl.load(case + 4))[:, None] * DIM + column[None, :]
        tl.store(pool + into, tl.where(cached[:, None], value, unused), mask=is_row[:, None] & is_column[None, :])
