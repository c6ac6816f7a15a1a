"""Index arithmetic for packed (ragged) rows: which request and position each row belongs to."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cases.schema import AttentionCase

Ints = NDArray[np.int64]
_T = TypeVar("_T", bound=np.generic)


class Rows(NamedTuple):
    """Packed rows: `request` and absolute `position` of each, both int64 [n]."""

    request: Tensor
    position: Tensor


class Lengths(NamedTuple):
    """Of the requests of cases one after another, int64 [requests] each; `requests`: how many each case has, and
    `first`: its first, int64 [cases] each."""

    prefix: Ints
    extend: Ints
    kv: Ints
    requests: Ints
    first: Ints

    def of_case(self, values: Ints) -> Ints:
        """[cases]: sums of what there is of each request."""
        return np.add.reduceat(values, self.first)

    def of_requests(self, values: Sequence[int] | Ints) -> Ints:
        """[requests]: what there is of each case, for each of its requests."""
        return np.repeat(np.asarray(values, dtype=np.int64), self.requests)

    def numbers(self) -> Ints:
        """[requests]: the number of each in its case."""
        return ragged_places(self.requests)[1]


@functools.lru_cache(maxsize=4)
def lengths_of(cases: tuple[AttentionCase, ...]) -> Lengths:
    """Not to be written to: kept, because every step of building a group asks for it."""
    pairs = chain.from_iterable(case.requests for case in cases)
    prefix, extend = np.fromiter(chain.from_iterable(pairs), dtype=np.int64).reshape(-1, 2).T.copy()
    requests = np.array([case.num_requests for case in cases], dtype=np.int64)
    return Lengths(prefix, extend, prefix + extend, requests, before(requests))


def split(values: NDArray[_T], sizes: Ints) -> list[NDArray[_T]]:
    """Views of parts one after another."""
    ends = np.cumsum(sizes).tolist()
    return [values[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]


def before(counts: Ints) -> Ints:
    """The sum of the counts before each."""
    return np.cumsum(counts) - counts


def ragged_places(counts: Ints) -> tuple[Ints, Ints]:
    """int64 [sum(counts)] each: of the elements of ragged rows one after another the row, and the place in it."""
    row = np.repeat(np.arange(len(counts)), counts)
    return row, np.arange(len(row)) - np.repeat(before(counts), counts)


def indptr(lengths: Sequence[int], device: torch.device | str = "cpu", dtype: torch.dtype = torch.int32) -> Tensor:
    """[len(lengths)+1] running sum from 0."""
    running = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(np.array(lengths, dtype=np.int64), out=running[1:])
    return torch.from_numpy(running).to(dtype).to(device, non_blocking=True)


# Rows are computed on the host up to this many: a device would be waited for several times on the way.
ON_HOST = 1 << 17
ALIGNED = 64  # elements: each tensor of one upload begins where a kernel may load 16 bytes at a time


def packed_rows(lengths: Sequence[int], first: Sequence[int], device: torch.device | str) -> Rows:
    """Rows first[i] .. first[i]+lengths[i]-1 of every request i, packed in order. Not to be written to: kept."""
    return _packed_rows(tuple(lengths), tuple(first), str(device))


@functools.lru_cache(maxsize=16)
def _packed_rows(lengths: tuple[int, ...], first: tuple[int, ...], device: str) -> Rows:
    # Kept, because one case asks for its rows a dozen times. In NumPy, whose small steps cost a fifth of torch's.
    total = sum(lengths)
    if total <= ON_HOST:
        counts = np.array(lengths, dtype=np.int64)
        request, place = ragged_places(counts)
        position = place + np.repeat(np.array(first, dtype=np.int64), counts)
        return Rows(*uploaded(device, torch.from_numpy(request), torch.from_numpy(position)))
    many = torch.tensor(lengths, dtype=torch.int64).to(device)
    of_request = torch.repeat_interleave(torch.arange(len(lengths), device=device), many, output_size=total)
    start = torch.cumsum(many, 0) - many
    shift = torch.tensor(first, dtype=torch.int64).to(device) - start
    return Rows(of_request, torch.arange(total, device=device) + shift[of_request])


def uploaded(device: torch.device | str, *parts: Tensor) -> tuple[Tensor, ...]:
    """Flat tensors of one dtype on `device`: from the host by one copy that nothing waits for."""
    device = torch.device(device)
    if device.type == "cpu" or parts[0].device.type != "cpu":
        return tuple(part.to(device) for part in parts)
    return Packed.of([part.numpy() for part in parts], device.type == "cuda").on(device)


class Packed(NamedTuple):
    """Flat arrays of one dtype one after another on the host, each where a kernel may load 16 bytes at a time.

    sizes: of each array, and of what lies between it and the next
    """

    buffer: Tensor
    sizes: list[int]

    @classmethod
    def of(cls, parts: Sequence[NDArray[Any]], pinned: bool) -> Packed:
        """pinned: for a GPU. A copy of pageable memory waits for what the device was given before."""
        sizes = [size for part in parts for size in (part.size, -part.size % ALIGNED)]
        buffer = torch.empty(sum(sizes), dtype=torch.from_numpy(parts[0]).dtype, pin_memory=pinned)
        between = np.zeros(ALIGNED, dtype=parts[0].dtype)
        pieces = chain.from_iterable((part, between[: -part.size % ALIGNED]) for part in parts)
        np.concatenate(list(pieces), out=buffer.numpy())
        return cls(buffer, sizes)

    def on(self, device: torch.device) -> tuple[Tensor, ...]:
        """The arrays on `device`, by one copy that nothing waits for."""
        copy = self.buffer.to(device, non_blocking=True, copy=True)
        return torch.split(copy, self.sizes)[::2]


def query_rows(case: AttentionCase, device: torch.device | str) -> Rows:
    """The new rows of a case, [total_q]: positions prefix_len .. prefix_len+extend_len-1."""
    return packed_rows([r.extend_len for r in case.requests], [r.prefix_len for r in case.requests], device)


def kv_rows(case: AttentionCase, device: torch.device | str) -> Rows:
    """All keys of a case, [total_kv]: positions 0 .. kv_len-1."""
    return packed_rows([r.kv_len for r in case.requests], [0] * case.num_requests, device)
