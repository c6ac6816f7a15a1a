"""Cases made as a group are what each is alone, and its host arithmetic what it says."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
import torch

from cases import AttentionCase, PageOrder, Request, counter_hash, hash_numpy
from cases.batch import AttentionBatch, build_batch, build_batches
from cases.errors import CaseError
from cases.paging import _sorting, host_pagings, make_paging
from cases.ragged import ALIGNED, Packed, ragged_places, split
from cases.schema import MIN_SPARE_PAGES, KvLayout, pages_owned
from cases.together import merged, merged_data
from cases.vocabulary import INT32_LIMIT

GROUP = (
    AttentionCase(requests=(Request(40, 5), Request(0, 9), Request(7, 0))),
    AttentionCase(requests=(Request(0, 1),), page_order=PageOrder.REVERSED, page_size=1, kv_layout=KvLayout.HND),
    AttentionCase(requests=(Request(300, 2), Request(0, 0), Request(3, 70)), page_size=5, seed=2, pool_pages=400),
    AttentionCase(
        requests=(Request(9, 2), Request(1, 1)), page_order=PageOrder.FAR_END, page_size=4, seed=3, pool_pages=90
    ),
    AttentionCase(requests=(Request(500, 1),) * 9, page_order=PageOrder.INTERLEAVED, page_size=64, seed=4),
)


def _content(batch: AttentionBatch) -> dict[str, torch.Tensor]:
    own = {f.name: getattr(batch, f.name) for f in fields(batch)}
    tensors = {name: value for name, value in own.items() if isinstance(value, torch.Tensor)}
    data = {name: getattr(batch.data, name) for name in "qkv"}
    return {**tensors, **data, "page_table": batch.page_table}


def test_a_group_is_its_cases() -> None:
    together = build_batches(GROUP, merged_data(GROUP, "cpu"), [case.poison for case in GROUP])
    for case, batch in zip(GROUP, together, strict=True):
        alone, own = _content(build_batch(case)), _content(batch)
        assert own.keys() == alone.keys()
        assert len(own) == 11
        for name, tensor in own.items():
            assert tensor.dtype == alone[name].dtype
            torch.testing.assert_close(tensor, alone[name], rtol=0, atol=0, equal_nan=True)
        paging = make_paging(case, "cpu")
        assert (batch.paging.owned, batch.paging.num_pages) == (paging.owned, paging.num_pages)


@pytest.mark.parametrize("at", range(len(GROUP)))
def test_pages_owned_and_in_the_pool(at: int) -> None:
    case, paging = GROUP[at], host_pagings(GROUP)[at]
    assert paging.owned == tuple(pages_owned(request, case.page_size) for request in case.requests)
    total = sum(paging.owned)
    assert paging.num_pages == (case.pool_pages or total + max(MIN_SPARE_PAGES, total // 8))


def test_what_is_kept_is_not_handed_out() -> None:
    for batch in build_batches(GROUP, merged_data(GROUP, "cpu"), [case.poison for case in GROUP]):
        for tensor in (batch.page_table, batch.new_slots, batch.new_keys, batch.qo_indptr, batch.extend_lens):
            tensor.fill_(-7)
    test_a_group_is_its_cases()


def test_sorting_is_argsort_where_the_highest_bits_agree() -> None:
    keys = counter_hash.row_keys(5, torch.zeros(4000, dtype=torch.int64), torch.arange(4000)).numpy()
    for held in (keys, keys[:1], keys[:0], keys >> 20, (keys >> 20) | (1 << 62)):
        assert len(np.unique(held)) == len(held)
        assert np.array_equal(_sorting(held), np.argsort(held))


def test_packed_row_keys_are_those_defined() -> None:
    lengths, first, numbers = np.array([5, 0, 300]), np.array([7, 3, 1 << 30]), np.array([0, 1, 6])
    streams = np.array([counter_hash.stream_key(seed, "k") for seed in (1, (1 << 63) - 1, 3)])
    got = hash_numpy.packed_row_keys(lengths, first, numbers, streams)
    request, place = ragged_places(lengths)
    assert request.tolist() == [0] * 5 + [2] * 300
    assert place.tolist() == [*range(5), *range(300)]
    for i, keys in enumerate(split(got, lengths)):
        position = torch.arange(lengths[i]) + int(first[i])
        number = torch.full_like(position, int(numbers[i]))
        defined = counter_hash.row_keys_defined(int(streams[i]), number, position)
        assert torch.equal(torch.from_numpy(keys), defined)


def test_packed_parts_come_back_each_where_it_may_begin() -> None:
    parts = [np.arange(n, dtype=np.int32) for n in (3, 0, ALIGNED, 130)]
    got = Packed.of(parts, pinned=False).on(torch.device("cpu"))
    assert [each.tolist() for each in got] == [part.tolist() for part in parts]
    assert all(each.storage_offset() % ALIGNED == 0 for each in got)


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        (Request(3, -1), "requests[1] is [3, -1]; lengths must not be negative."),
        (Request(True, 1), "requests[1] is Request(prefix_len=True, extend_len=1); give two integers"),
        (Request(1, 2.0), "requests[1] is Request(prefix_len=1, extend_len=2.0); give two integers"),  # type: ignore[arg-type]
        (Request(INT32_LIMIT - 1, 1), f"requests[1] is [{INT32_LIMIT - 1}, 1]; a request must stay below 2**31 keys."),
    ],
)
def test_a_bad_request_among_good_ones_is_refused(bad: Request, sentence: str) -> None:
    with pytest.raises(CaseError) as told:
        AttentionCase(requests=(Request(1, 1), bad, Request(2, 0)))
    assert sentence in str(told.value)


def test_merged_requests_are_all_in_order() -> None:
    assert merged(GROUP).requests == tuple(request for case in GROUP for request in case.requests)
    assert merged(GROUP).total_kv == sum(case.total_kv for case in GROUP)
