"""Paging and batches: who owns which slot, what it holds, and when."""

from __future__ import annotations

import resource

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cases import AttentionCase, PageOrder, Poison, Request
from cases.batch import AttentionBatch, build_batch
from cases.paging import make_paging
from cases.pools import POISON_V, scatter
from cases.ragged import kv_rows
from cases.recipes import make_data
from cases.schema import MIN_SPARE_PAGES, KvLayout

small_batches = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 9)), min_size=1, max_size=6).filter(
    lambda pairs: any(extend for _, extend in pairs)
)


@given(
    requests=small_batches,
    page_size=st.sampled_from([1, 2, 3, 16, 64]),
    order=st.sampled_from(PageOrder),
    extra=st.none() | st.integers(0, 50),
    seed=st.integers(0, 99),
)
@settings(max_examples=200, deadline=None)
def test_pages_are_owned_once_and_strangers_never_referenced(
    requests: list[tuple[int, int]], page_size: int, order: PageOrder, extra: int | None, seed: int
) -> None:
    built = AttentionCase(
        requests=tuple(Request(*pair) for pair in requests), page_size=page_size, page_order=order, seed=seed
    )
    if extra is not None:
        built = built.replace(pool_pages=sum(make_paging(built, "cpu").owned) + MIN_SPARE_PAGES + extra)
    paging = make_paging(built, "cpu")
    assert paging.page_table.dtype == torch.int32
    owned: list[int] = []
    for i, request in enumerate(built.requests):
        row, count = paging.page_table[i].tolist(), paging.owned[i]
        assert count * page_size >= request.kv_len + request.extend_len
        owned += row[:count]
    assert len(set(owned)) == len(owned) == sum(paging.owned)
    assert all(0 < page < paging.num_pages for page in owned)  # page 0 stays free
    tails = {p for i, n in enumerate(paging.owned) for p in paging.page_table[i, n:].tolist()}
    assert not tails & set(owned)
    assert paging.num_pages - len(owned) >= MIN_SPARE_PAGES
    slots = paging.slots(kv_rows(built, "cpu"))
    assert slots.unique().numel() == built.total_kv


def _table(order: PageOrder, **changes: object) -> list[list[int]]:
    built = AttentionCase(requests=((4, 2), (2, 1), (7, 1)), page_size=2, page_order=order, **changes)  # type: ignore[arg-type]
    return make_paging(built, "cpu").page_table.tolist()


def test_page_orders() -> None:
    """Owned: 4, 2 and 5 pages; 0 is the page that nobody owns."""
    assert _table(PageOrder.CONTIGUOUS) == [[1, 2, 3, 4, 0], [5, 6, 0, 0, 0], [7, 8, 9, 10, 11]]
    assert _table(PageOrder.REVERSED) == [[11, 10, 9, 8, 0], [7, 6, 0, 0, 0], [5, 4, 3, 2, 1]]
    assert _table(PageOrder.INTERLEAVED) == [[1, 4, 7, 9, 0], [2, 5, 0, 0, 0], [3, 6, 8, 10, 11]]
    assert _table(PageOrder.FAR_END, pool_pages=100) == [[89, 90, 91, 92, 0], [93, 94, 0, 0, 0], [95, 96, 97, 98, 99]]


def test_shuffled_pages_are_pinned_out_of_order_and_follow_the_seed() -> None:
    table = _table(PageOrder.SHUFFLED)
    assert table == PINNED_TABLE
    assert table != _table(PageOrder.SHUFFLED, seed=1)
    assert sorted(page for row in table for page in row if page) != [page for row in table for page in row if page]


PINNED_TABLE = [[10, 2, 1, 11, 0], [7, 12, 0, 0, 0], [9, 6, 8, 3, 5]]


def _by_slot(pool: torch.Tensor, layout: KvLayout) -> torch.Tensor:
    """fp32 [slots, heads, dim]"""
    by_token = pool if layout is KvLayout.NHD else pool.transpose(1, 2)
    return by_token.float().reshape(-1, *by_token.shape[2:])


def _unused_of_owned(batch: AttentionBatch) -> torch.Tensor:
    """Slots of owned pages that hold no prefix key."""
    size, used = batch.case.page_size, set()
    slots: list[int] = []
    for i, request in enumerate(batch.case.requests):
        pages = batch.page_table[i, : batch.paging.owned[i]].tolist()
        mine = [page * size + offset for page in pages for offset in range(size)]
        used |= set(mine[: request.prefix_len])
        slots += mine[request.prefix_len :]
    assert not used & set(slots)
    return torch.tensor(slots)


BATCH = AttentionCase(requests=((13, 4), (0, 3), (33, 0), (16, 1)), page_size=8, head_dim_qk=64, head_dim_vo=32)
VARIANTS = [
    BATCH,
    BATCH.replace(kv_layout=KvLayout.HND),
    BATCH.replace(kv_dtype="float8_e4m3fn"),
    BATCH.replace(kv_dtype="float8_e5m2", kv_layout=KvLayout.HND),
    BATCH.replace(page_size=1, dtype="float16", kv_dtype="float16"),
    BATCH.replace(page_size=64, dtype="float32", kv_dtype="float32", page_order=PageOrder.FAR_END, pool_pages=40),
]


@pytest.mark.parametrize("level", list(Poison))
@pytest.mark.parametrize("built", VARIANTS, ids=lambda built: built.name)
def test_pool_holds_prefix_and_poison_and_nothing_else(built: AttentionCase, level: Poison) -> None:
    batch = build_batch(built.replace(poison=level))
    assert batch.poison is level
    assert batch.k_pool.dtype == batch.v_pool.dtype == getattr(torch, built.kv_dtype)
    k, v = _by_slot(batch.k_pool, built.kv_layout), _by_slot(batch.v_pool, built.kv_layout)
    keys = kv_rows(built, "cpu")
    in_prefix = keys.position < batch.prefix_lens[keys.request]
    prefix_slots = batch.paging.slots(keys)[in_prefix]
    assert torch.equal(k[prefix_slots], batch.data.k[in_prefix].float())
    assert torch.equal(v[prefix_slots], batch.data.v[in_prefix].float())
    unused = _unused_of_owned(batch)
    if level is Poison.NAN:
        assert k[unused].isnan().all()
        assert v[unused].isnan().all()
    elif level is Poison.ZERO:
        assert not k[unused].any()
        assert not v[unused].any()
    else:
        assert torch.equal(v[unused].abs(), torch.full_like(v[unused], POISON_V))
        assert 0.5 < k[unused].std() < 1.5
    outside = torch.ones(k.shape[0], dtype=torch.bool)
    outside[prefix_slots] = outside[unused] = False
    assert outside.sum() >= MIN_SPARE_PAGES * built.page_size
    for pool in (k, v):
        strangers = pool[outside]
        assert not strangers.any() if level is Poison.ZERO else strangers.isnan().all()


@pytest.mark.parametrize("level", list(Poison))
@pytest.mark.parametrize("built", VARIANTS, ids=lambda built: built.name)
def test_new_rows_are_not_there_until_written_and_reset_takes_them_away(built: AttentionCase, level: Poison) -> None:
    batch = build_batch(built, poison=level)
    assert batch.poison is level
    before = [_by_slot(pool, built.kv_layout).clone() for pool in (batch.k_pool, batch.v_pool)]
    new = batch.new_slots
    assert not torch.equal(before[0][new], batch.k_new.float())
    batch.write_new_rows()
    after = [_by_slot(pool, built.kv_layout) for pool in (batch.k_pool, batch.v_pool)]
    assert torch.equal(after[0][new], batch.k_new.float())
    assert torch.equal(after[1][new], batch.v_new.float())
    elsewhere = torch.ones(before[0].shape[0], dtype=torch.bool)
    elsewhere[new] = False
    for old, now in zip(before, after, strict=True):
        assert torch.equal(old[elsewhere].nan_to_num(9e9), now[elsewhere].nan_to_num(9e9))
    batch.reset()
    for old, pool in zip(before, (batch.k_pool, batch.v_pool), strict=True):
        assert torch.equal(old.nan_to_num(9e9), _by_slot(pool, built.kv_layout).nan_to_num(9e9))


def test_written_pool_read_through_the_page_table_is_the_data() -> None:
    for layout in KvLayout:
        batch = build_batch(BATCH.replace(kv_layout=layout))
        batch.write_new_rows()
        slots = batch.paging.slots(kv_rows(BATCH, "cpu"))
        assert torch.equal(_by_slot(batch.k_pool, layout)[slots], batch.data.k.float())
        assert torch.equal(_by_slot(batch.v_pool, layout)[slots], batch.data.v.float())


def test_lengths_and_shapes() -> None:
    batch = build_batch(BATCH)
    assert batch.qo_indptr.tolist() == [0, 4, 7, 7, 8]
    assert batch.prefix_lens.tolist() == [13, 0, 33, 16]
    assert batch.extend_lens.tolist() == [4, 3, 0, 1]
    assert batch.kv_lens.tolist() == [17, 3, 33, 17]
    assert {t.dtype for t in (batch.qo_indptr, batch.prefix_lens, batch.extend_lens, batch.kv_lens)} == {torch.int32}
    assert batch.q.shape == (8, 8, 64)
    assert batch.k_new.shape == (8, 2, 64)
    assert batch.v_new.shape == (8, 2, 32)
    assert batch.k_pool.shape == (batch.paging.num_pages, 8, 2, 64)
    assert batch.v_pool.shape == (batch.paging.num_pages, 8, 2, 32)
    assert build_batch(BATCH.replace(kv_layout="HND")).k_pool.shape == (batch.paging.num_pages, 2, 8, 64)
    out = batch.empty_output()
    assert out.shape == (8, 8, 32)
    assert out.isnan().all()


def test_the_same_case_is_the_same_bits_and_given_data_replace_the_recipe() -> None:
    first, second = build_batch(BATCH), build_batch(BATCH)
    assert torch.equal(first.k_pool.nan_to_num(9e9), second.k_pool.nan_to_num(9e9))
    data = make_data(BATCH.replace(seed=9), "cpu")
    assert build_batch(BATCH, data=data).q is data.q


def test_a_layout_moves_rows_but_not_their_bits() -> None:
    """The poison of a slot follows its logical place, so page order cannot change what a leak reads."""
    one, other = build_batch(BATCH), build_batch(BATCH.replace(page_order=PageOrder.REVERSED, kv_layout="HND"))
    stale_one = _by_slot(one.v_pool, KvLayout.NHD)[one.new_slots]
    stale_other = _by_slot(other.v_pool, KvLayout.HND)[other.new_slots]
    assert torch.equal(stale_one, stale_other)


def test_scatter_writes_rows_where_told() -> None:
    for layout, shape in ((KvLayout.NHD, (3, 4, 2, 5)), (KvLayout.HND, (3, 2, 4, 5))):
        pool = torch.zeros(shape)
        scatter(pool, torch.tensor([1, 11]), torch.ones(2, 2, 5), layout)
        assert _by_slot(pool, layout).any(-1).any(-1).nonzero().flatten().tolist() == [1, 11]


def test_a_pool_past_2_31_elements_costs_only_the_pages_used() -> None:
    per_page = 16 * 2 * 64
    pages = (1 << 31) // per_page + 4096
    built = AttentionCase(requests=((30, 5),), page_order=PageOrder.FAR_END, pool_pages=pages)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    batch = build_batch(built)
    grown_mib = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert batch.k_pool.numel() > 1 << 31
    assert grown_mib < 512
    first_element = batch.page_table[0, 0].item() * per_page
    assert first_element >= 1 << 31
    wrapped = first_element % (1 << 31) // per_page
    for page in (0, wrapped, int(batch.page_table[0, 0]) - 1):
        assert batch.k_pool[page].isnan().all()
    keys = kv_rows(built, "cpu")
    slots = batch.paging.slots(keys)[:30]
    assert torch.equal(batch.k_pool.view(-1, 2, 64)[slots], batch.data.k[:30])
