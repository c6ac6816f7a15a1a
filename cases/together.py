"""Several cases as one, for what does not care where one ends: drawing numbers, and comparing rows.

A GPU runs many small steps at the speed at which they are launched. Sixteen cases drawn and compared in one pass cost
about as much as one.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cases import counter_hash
from cases.ragged import Rows, kv_rows, query_rows, uploaded
from cases.recipes import LogicalData, make_data, torch_dtype
from cases.schema import AttentionCase, Execution, KvLayout, Mode, PageOrder, Poison


def merged(cases: Sequence[AttentionCase]) -> AttentionCase:
    """One case with the requests of all: its rows are theirs, in order, and its answer is theirs on their data.

    Only for cases of the same `numbers`; what it says of pages, execution and data means nothing.
    """
    return numbers(cases[0]).replace(requests=tuple(request for case in cases for request in case.requests))


def numbers(case: AttentionCase) -> AttentionCase:
    """What the answer of a case depends on beside its requests and data: cases that agree in it can be merged."""
    return case.replace(
        requests=((0, 1),),
        mode=Mode.EXTEND,
        page_size=1,
        page_order=PageOrder.CONTIGUOUS,
        pool_pages=None,
        kv_layout=KvLayout.NHD,
        poison=Poison.ZERO,
        execution=Execution(),
        recipe="normal",
        seed=0,
    )


def merged_data(cases: Sequence[AttentionCase], device: torch.device | str) -> tuple[LogicalData, list[LogicalData]]:
    """Data of all cases one after another, and of each as views of it: the bits of `make_data`. No sinks."""
    first = cases[0]
    if all(case.recipe == "normal" for case in cases):
        q_keys, k_keys, v_keys = (_keys(cases, stream) for stream in "qkv")
        keys = uploaded(device, q_keys, k_keys, v_keys)
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
    rows, tokens = [case.total_q for case in cases], [case.total_kv for case in cases]
    split = zip(torch.split(q, rows), torch.split(k, tokens), torch.split(v, tokens), strict=True)
    return LogicalData(q, k, v, None), [LogicalData(*views, None) for views in split]


def _keys(cases: Sequence[AttentionCase], stream: str) -> Tensor:
    """Row keys on the host, of all cases."""
    rows: list[Rows] = [query_rows(case, "cpu") if stream == "q" else kv_rows(case, "cpu") for case in cases]
    return torch.cat(
        [
            counter_hash.row_keys(counter_hash.stream_key(case.seed, stream), *at)
            for case, at in zip(cases, rows, strict=True)
        ]
    )


def _normal(keys: Tensor, heads: int, dim: int, dtype: str) -> Tensor:
    return counter_hash.normal(keys, heads * dim).to(torch_dtype(dtype)).view(-1, heads, dim)
