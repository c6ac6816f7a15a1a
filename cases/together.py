"""Several cases as one, for what does not care where one ends: drawing numbers, and comparing rows.

A GPU runs many small steps at the speed at which they are launched. Sixteen cases drawn and compared in one pass cost
about as much as one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cases.counter_hash import normal, stream_key
from cases.hash_kernels import packed_row_keys
from cases.ragged import lengths_of
from cases.recipes import LogicalData, make_data, torch_dtype
from cases.schema import AttentionCase, Execution, KvLayout, Mode, PageOrder, Poison


def merged(cases: Sequence[AttentionCase]) -> AttentionCase:
    """One case with the requests of all: its rows are theirs, in order, and its answer is theirs on their data.

    Only for cases of the same `numbers`; what it says of pages, execution and data means nothing.
    """
    return cases[0].replace(requests=tuple(request for case in cases for request in case.requests), **NOT_NUMBERS)


# What the answer of a case does not depend on, beside its requests: set to something plain.
NOT_NUMBERS: dict[str, Any] = {
    "mode": Mode.EXTEND,
    "page_size": 1,
    "page_order": PageOrder.CONTIGUOUS,
    "pool_pages": None,
    "kv_layout": KvLayout.NHD,
    "poison": Poison.ZERO,
    "execution": Execution(),
    "recipe": "normal",
    "seed": 0,
}
_NUMBERS = tuple(f for f in AttentionCase.__dataclass_fields__ if f not in NOT_NUMBERS and f != "requests")


def numbers(case: AttentionCase) -> tuple[object, ...]:
    """What the answer of a case depends on beside its requests and data: cases that agree in it can be merged."""
    return tuple(getattr(case, name) for name in _NUMBERS)


def merged_data(cases: Sequence[AttentionCase], device: torch.device | str) -> LogicalData:
    """Data of all cases one after another: the bits of `make_data`. No sinks."""
    first = cases[0]
    if all(case.recipe == "normal" for case in cases):
        keys = _keys(cases, torch.device(device))
        shapes = (
            (first.num_qo_heads, first.head_dim_qk, first.dtype),
            (first.num_kv_heads, first.head_dim_qk, first.kv_dtype),
            (first.num_kv_heads, first.head_dim_vo, first.kv_dtype),
        )
        whole = [_normal(rows, *shape) for rows, shape in zip(keys, shapes, strict=True)]
    else:
        each = [make_data(case, device) for case in cases]
        whole = [torch.cat([getattr(data, name) for data in each]) for name in "qkv"]
    q, k, v = whole
    return LogicalData(q, k, v, None)


def _keys(cases: Sequence[AttentionCase], device: torch.device) -> list[Tensor]:
    """Row keys of q, k and v of all cases."""
    lengths = lengths_of(tuple(cases))
    numbers, zero = lengths.numbers(), np.zeros_like(lengths.prefix)
    q, k, v = (lengths.of_requests([stream_key(case.seed, stream) for case in cases]) for stream in "qkv")
    return [
        *packed_row_keys(lengths.extend, lengths.prefix, numbers, [q], device),
        *packed_row_keys(lengths.kv, zero, numbers, [k, v], device),
    ]


def _normal(keys: Tensor, heads: int, dim: int, dtype: str) -> Tensor:
    return normal(keys, heads * dim, torch_dtype(dtype)).view(-1, heads, dim)
