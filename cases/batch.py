"""The batch: a case made real on a device."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from cases.paging import Paging, host_pagings, pages_of
from cases.pools import filled_pools, scatter, stale_rows
from cases.ragged import Ints, Packed, before, lengths_of, query_rows, ragged_places, split
from cases.recipes import LogicalData, each_case, make_data
from cases.schema import AttentionCase, Poison


@dataclass(slots=True)
class AttentionBatch:
    """Tensors of one case on one device.

    data:       inputs in logical order (see LogicalData); data.k and data.v hold every key
    k_pool:     [num_pages, page_size, num_kv_heads, head_dim_qk], or with kv_layout HND
                [num_pages, num_kv_heads, page_size, head_dim_qk]; prefix rows are written, the new
                rows are NOT: an adapter writes them (`write_new_rows`) when its path does
    v_pool:     the same with head_dim_vo
    paging:     the page table
    qo_indptr:  int32 [num_requests+1]
    prefix_lens, extend_lens: int32 [num_requests]
    new_slots:  int64 [total_q], the pool slots of the new rows
    poison:     the level that the unused slots really hold
    new_keys:   int64 [total_q], the rows of data.k and data.v that are new
    unwritten:  what an output buffer holds before a kernel writes it
    """

    case: AttentionCase
    device: torch.device
    data: LogicalData
    k_pool: Tensor
    v_pool: Tensor
    paging: Paging
    qo_indptr: Tensor
    prefix_lens: Tensor
    extend_lens: Tensor
    new_slots: Tensor
    poison: Poison
    new_keys: Tensor
    unwritten: float = float("nan")

    @property
    def q(self) -> Tensor:
        """[total_q, num_qo_heads, head_dim_qk]"""
        return self.data.q

    @property
    def k_new(self) -> Tensor:
        """[total_q, num_kv_heads, head_dim_qk]: the keys of the new rows, in the order of q."""
        return self.data.k[self.new_keys]

    @property
    def v_new(self) -> Tensor:
        """[total_q, num_kv_heads, head_dim_vo]"""
        return self.data.v[self.new_keys]

    @property
    def page_table(self) -> Tensor:
        """int32 [num_requests, columns]"""
        return self.paging.page_table

    @property
    def kv_lens(self) -> Tensor:
        """int32 [num_requests]: prefix + extend"""
        return self.prefix_lens + self.extend_lens

    def write_new_rows(self) -> None:
        """Write the new rows into the pool, as a serving engine's cache write does."""
        scatter(self.k_pool, self.new_slots, self.k_new, self.case.kv_layout)
        scatter(self.v_pool, self.new_slots, self.v_new, self.case.kv_layout)

    def reset(self) -> None:
        """Undo `write_new_rows`: the slots of the new rows hold stale data again."""
        rows = query_rows(self.case, self.device)
        stale_k, stale_v = stale_rows(self.case, rows, self.poison)
        scatter(self.k_pool, self.new_slots, stale_k, self.case.kv_layout)
        scatter(self.v_pool, self.new_slots, stale_v, self.case.kv_layout)

    def empty_output(self) -> Tensor:
        """[total_q, num_qo_heads, head_dim_vo] of NaN (see `unwritten`), so that an unwritten row cannot pass."""
        shape = (self.case.total_q, self.case.num_qo_heads, self.case.head_dim_vo)
        return torch.full(shape, self.unwritten, dtype=self.q.dtype, device=self.device)


def build_batch(
    case: AttentionCase,
    device: torch.device | str = "cpu",
    *,
    data: LogicalData | None = None,
    poison: Poison | None = None,
) -> AttentionBatch:
    """Make `case` real. `data` replaces its recipe (certificates do); `poison` its poison level."""
    data = make_data(case, device) if data is None else data
    return build_batches([case], data, [case.poison if poison is None else poison])[0]


def build_batches(cases: Sequence[AttentionCase], data: LogicalData, levels: Sequence[Poison]) -> list[AttentionBatch]:
    """Make cases real that share heads, dimensions and dtypes. `data`: theirs, one after another, on their device."""
    device = data.q.device
    pools = filled_pools(cases, data, levels)
    places = _handed_out(tuple(cases), device)
    return [
        AttentionBatch(
            case=case,
            device=device,
            data=own,
            k_pool=k_pool,
            v_pool=v_pool,
            paging=replace(paging, page_table=place.page_table.view(case.num_requests, -1)),
            qo_indptr=place.qo_indptr,
            prefix_lens=place.prefix_lens,
            extend_lens=place.extend_lens,
            new_slots=place.new_slots,
            poison=level,
            new_keys=place.new_keys,
        )
        for case, own, (k_pool, v_pool), paging, place, level in zip(
            cases, each_case(cases, data), pools, host_pagings(tuple(cases)), places, levels, strict=True
        )
    ]


class _Places(NamedTuple):
    """Of a case: int64 [total_q] new_slots and new_keys; int32 the page table (flat), qo_indptr, prefix_lens and
    extend_lens."""

    new_slots: Tensor
    new_keys: Tensor
    page_table: Tensor
    qo_indptr: Tensor
    prefix_lens: Tensor
    extend_lens: Tensor


def _handed_out(cases: tuple[AttentionCase, ...], device: torch.device) -> list[_Places]:
    """The places of each case, by two copies to the device. A batch is its adapter's to write to; what is kept not."""
    wide, small = _places(cases, device.type == "cuda")
    parts = (*wide.on(device), *small.on(device))
    return [_Places(*parts[at :: len(cases)]) for at in range(len(cases))]


@functools.lru_cache(maxsize=2)
def _places(cases: tuple[AttentionCase, ...], pinned: bool) -> tuple[Packed, Packed]:
    """The int64 fields of _Places and the int32 ones, each field of all cases, on the host. Kept: a case is built once
    per certificate."""
    lengths = lengths_of(cases)
    rows = lengths.of_case(lengths.extend)
    running = np.cumsum(np.insert(lengths.extend, lengths.first, 0))
    qo_indptr = running - np.repeat(before(rows), lengths.requests + 1)
    tables = [paging.page_table.numpy().ravel() for paging in host_pagings(cases)]
    wide = [part for each in _of_new_rows(cases) for part in split(each, rows)]
    small = [
        part
        for each, sizes in (
            (qo_indptr, lengths.requests + 1),
            (lengths.prefix, lengths.requests),
            (lengths.extend, lengths.requests),
        )
        for part in split(each.astype(np.int32), sizes)
    ]
    return Packed.of(wide, pinned), Packed.of([*tables, *small], pinned)


def _of_new_rows(cases: tuple[AttentionCase, ...]) -> tuple[Ints, Ints]:
    """new_slots and new_keys of the cases one after another."""
    lengths, pages = lengths_of(cases), pages_of(cases)

    def of_rows(of_requests: Ints) -> Ints:
        return np.repeat(of_requests, lengths.extend)

    position = ragged_places(lengths.extend)[1] + of_rows(lengths.prefix)
    page_size = of_rows(pages.page_size)
    turn, offset = np.divmod(position, page_size)
    page = pages.page[of_rows(before(pages.owned)) + turn]
    first_key = before(lengths.kv) - lengths.of_requests(before(lengths.of_case(lengths.kv)))
    return page * page_size + offset, of_rows(first_key) + position
