"""Data recipes: what q, k, v and sinks hold, by logical position, never by slot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cases import counter_hash
from cases.ragged import kv_rows, lengths_of, query_rows
from cases.schema import AttentionCase


@dataclass(frozen=True, slots=True)
class LogicalData:
    """The inputs of a case in logical order.

    q:     [total_q, num_qo_heads, head_dim_qk], the case's dtype
    k:     [total_kv, num_kv_heads, head_dim_qk], the case's kv_dtype (fp8 values are unscaled: the
           true key is k * k_scale)
    v:     [total_kv, num_kv_heads, head_dim_vo], likewise
    sinks: [num_qo_heads] float32, natural-log logits, or None
    """

    q: Tensor
    k: Tensor
    v: Tensor
    sinks: Tensor | None


def each_case(cases: Sequence[AttentionCase], data: LogicalData) -> list[LogicalData]:
    """Views of the data of cases one after another: each case's own. Sinks are of one case alone."""
    if len(cases) == 1:
        return [data]
    lengths = lengths_of(tuple(cases))
    rows, tokens = (lengths.of_case(each).tolist() for each in (lengths.extend, lengths.kv))
    split = zip(torch.split(data.q, rows), torch.split(data.k, tokens), torch.split(data.v, tokens), strict=True)
    return [LogicalData(*views, None) for views in split]


def torch_dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype


def _heads(flat: Tensor, heads: int) -> Tensor:
    return flat.view(flat.shape[0], heads, -1)


def normal_data(case: AttentionCase, device: torch.device | str, gain: float = 1.0) -> LogicalData:
    """Unit-normal q, k, v (times `gain`); sinks unit-normal around 1, near the LSE of few keys."""

    def draw(stream: str, rows: tuple[Tensor, Tensor], heads: int, dim: int, dtype: str) -> Tensor:
        keys = counter_hash.row_keys(counter_hash.stream_key(case.seed, stream), *rows)
        if gain == 1.0:
            return _heads(counter_hash.normal(keys, heads * dim, torch_dtype(dtype)), heads)
        return _heads((counter_hash.normal(keys, heads * dim) * gain).to(torch_dtype(dtype)), heads)

    q_rows, k_rows = query_rows(case, device), kv_rows(case, device)
    return LogicalData(
        q=draw("q", q_rows, case.num_qo_heads, case.head_dim_qk, case.dtype),
        k=draw("k", k_rows, case.num_kv_heads, case.head_dim_qk, case.kv_dtype),
        v=draw("v", k_rows, case.num_kv_heads, case.head_dim_vo, case.kv_dtype),
        sinks=normal_sinks(case, device) if case.sinks else None,
    )


def normal_sinks(case: AttentionCase, device: torch.device | str) -> Tensor:
    """[num_qo_heads] float32 holding bf16-exact values, as checkpoints store them."""
    zero = torch.zeros(1, dtype=torch.int64, device=device)
    keys = counter_hash.row_keys(counter_hash.stream_key(case.seed, "sinks"), zero, zero)
    return (counter_hash.normal(keys, case.num_qo_heads)[0] + 1).to(torch.bfloat16).float()


def small_data(case: AttentionCase, device: torch.device | str) -> LogicalData:
    """Everything a tenth of normal, as many suites have it: errors hide under a flat tolerance."""
    return normal_data(case, device, gain=0.1)


SPIKE_PERIOD = 37  # odd and prime: no page, tile or window size is a multiple of it
SPIKE_GAIN = 4.0


def spiky_data(case: AttentionCase, device: torch.device | str) -> LogicalData:
    """A few keys dominate: every SPIKE_PERIOD-th key is SPIKE_GAIN times longer, queries twice."""
    data = normal_data(case, device)
    rows = kv_rows(case, device)
    spike = ((rows.position + 7 * rows.request) % SPIKE_PERIOD == 0)[:, None, None]
    k = torch.where(spike, data.k.float() * SPIKE_GAIN, data.k.float()).to(data.k.dtype)
    return LogicalData(q=(data.q.float() * 2).to(data.q.dtype), k=k, v=data.v, sinks=data.sinks)


# <q, k> near -2.6e5, below any finite number that a mask is likely to be written with. Exact in fp8 too.
SUNKEN_Q, SUNKEN_K = -1024.0, 256.0


def sunken_data(case: AttentionCase, device: torch.device | str) -> LogicalData:
    """Normal data with every <q, k> lowered by one large product, as large biases of K lower them: the softmax does
    not change, a mask that is a finite number comes out on top."""
    data = normal_data(case, device)
    q, k = data.q.clone(), data.k.clone()
    q[..., 0], k[..., 0] = SUNKEN_Q, SUNKEN_K
    return LogicalData(q=q, k=k, v=data.v, sinks=data.sinks)


Recipe = Callable[[AttentionCase, "torch.device | str"], LogicalData]

RECIPES: dict[str, Recipe] = {"normal": normal_data, "small": small_data, "spiky": spiky_data, "sunken": sunken_data}


def make_data(case: AttentionCase, device: torch.device | str) -> LogicalData:
    """The case's own data."""
    return RECIPES[case.recipe](case, device)
