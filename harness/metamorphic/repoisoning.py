"""What nobody may read does not matter: other values in unused slots, output buffers and scratch memory give the
same bits.

Bits see what a bound does not: a stale key that is masked, and yet moves the row maximum or one rounding.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

from torch import Tensor

from cases.batch import AttentionBatch
from cases.pools import scatter
from cases.ragged import packed_rows
from cases.schema import AttentionCase, KvLayout, Poison
from harness.metamorphic.relation import Subject, Variant, all_rows

FILL = 3.0  # of output buffers, which otherwise begin as NaN


class Repoisoning:
    name = "re-poisoning"

    def not_run(self, subject: Subject) -> str | None:
        return None if subject.deterministic else "the adapter declares that two runs may differ"

    def variants(self, subject: Subject) -> Iterator[Variant]:
        case = _other_scratch(subject.case)
        for label, level, change in _poisons(subject):
            yield Variant(label, case, subject.data, all_rows(subject), True, level, change=change)


def _poisons(subject: Subject) -> Iterator[tuple[str, Poison, Callable[[AttentionBatch], None]]]:
    if subject.level is Poison.ZERO:  # no more is promised, or looked at: see harness/running/examine.py
        yield "another output buffer and workspace", Poison.ZERO, _fill_output
        return
    yield "other finite values in unused slots", Poison.FINITE, _negate_unused
    if subject.level is Poison.FINITE and subject.promised is Poison.NAN:
        yield "NaN in unused slots", Poison.NAN, _fill_output


def _other_scratch(case: AttentionCase) -> AttentionCase:
    dirty = case.execution.workspace == "dirty"
    return case.replace(execution=dataclasses.replace(case.execution, workspace="clean" if dirty else "dirty"))


def _fill_output(batch: AttentionBatch) -> None:
    batch.unwritten = FILL


def _negate_unused(batch: AttentionBatch) -> None:
    """Multiply what the unused slots of owned pages hold by -1/2: exact in every dtype, and still finite."""
    _fill_output(batch)
    case, owned = batch.case, batch.paging.owned
    first = [r.prefix_len for r in case.requests]
    unused = [count * case.page_size - start for count, start in zip(owned, first, strict=True)]
    slots = batch.paging.slots(packed_rows(unused, first, batch.device))
    for pool in (batch.k_pool, batch.v_pool):
        stale = _gathered(pool, slots, case)
        scatter(pool, slots, (stale.float() * -0.5).to(pool.dtype), case.kv_layout)


def _gathered(pool: Tensor, slots: Tensor, case: AttentionCase) -> Tensor:
    """[n, num_kv_heads, dim] rows of a pool."""
    by_token = pool if case.kv_layout is KvLayout.NHD else pool.transpose(1, 2)
    return by_token[slots // case.page_size, slots % case.page_size]
