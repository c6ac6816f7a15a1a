"""What a relation is: other runs of a case's own tensors, and which rows of them must agree with the case's."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from cases.batch import AttentionBatch
from cases.ragged import packed_rows
from cases.recipes import LogicalData
from cases.schema import AttentionCase, Poison


@dataclass(frozen=True, slots=True)
class Subject:
    """A case, its data, and what the adapter under test declares of its bits.

    level:    what the unused slots hold in the run that the others are compared with
    promised: the strongest level at which the adapter declares itself right
    repeats:  runs on the same inputs that must agree
    """

    case: AttentionCase
    data: LogicalData
    level: Poison
    promised: Poison
    deterministic: bool
    batch_invariant: bool
    page_invariant: bool
    repeats: int

    @property
    def device(self) -> torch.device:
        return self.data.q.device


@dataclass(frozen=True, slots=True)
class Variant:
    """One other way to put the question.

    label:     how it differs, in words that follow "with"
    case:      the case of the other run; its recipe and seed do not matter
    data:      taken from the tensors of the original, never drawn again
    rows:      int64 [case.total_q]: the row of the original that each row of this run must agree with
    exact:     bit for bit (+0 and -0 count as the same); else within the two rows' bounds together
    own_bound: a row's bound is not that of the original, because its keys are split otherwise
    level:     what the unused slots hold
    change:    done to the batch before the first run
    times:     runs on this batch
    """

    label: str
    case: AttentionCase
    data: LogicalData
    rows: Tensor
    exact: bool
    level: Poison
    own_bound: bool = False
    change: Callable[[AttentionBatch], None] | None = None
    times: int = 1


class Relation(Protocol):
    """A property that right kernels have, without knowing what the right answer is."""

    name: str

    def not_run(self, subject: Subject) -> str | None:
        """Why it says nothing of this case, or None."""
        ...

    def variants(self, subject: Subject) -> Iterator[Variant]:
        """At least one, where `not_run` gives None."""
        ...


def all_rows(subject: Subject) -> Tensor:
    """int64 [total_q]: every row, in place."""
    return torch.arange(subject.case.total_q, device=subject.device)


def rows_of(lengths: Sequence[int], chosen: Sequence[int], skip: Sequence[int], device: torch.device) -> Tensor:
    """int64: the packed rows of requests `chosen`, in that order, each without its first `skip` rows.

    `lengths`: rows of every request; `skip`: for each of `chosen`.
    """
    start = [0, *itertools.accumulate(lengths)]
    left = [lengths[i] - cut for i, cut in zip(chosen, skip, strict=True)]
    return packed_rows(left, [start[i] + cut for i, cut in zip(chosen, skip, strict=True)], device).position


def only_requests(subject: Subject, chosen: Sequence[int]) -> tuple[AttentionCase, LogicalData, Tensor]:
    """The case and data of requests `chosen`, in that order, and the rows of the original that its rows are."""
    case, data, none = subject.case, subject.data, [0] * len(chosen)
    rows = rows_of([r.extend_len for r in case.requests], chosen, none, subject.device)
    keys = rows_of([r.kv_len for r in case.requests], chosen, none, subject.device)
    taken = LogicalData(data.q[rows], data.k[keys], data.v[keys], data.sinks)
    return case.replace(requests=tuple(case.requests[i] for i in chosen)), taken, rows
