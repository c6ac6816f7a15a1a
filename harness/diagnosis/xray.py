"""X-ray: which keys did each query really attend to? Read from outputs alone.

With q = 0 every attended key weighs the same. V is then given identity blocks: in run number b, key
b * D + d (D = head_dim_vo, keys of all requests counted through) has a 1 in column d and nothing else, so
out[row, head, d] is m / n with m how often that key was attended to and n how many keys were in all; the
smallest non-zero value is 1/n. Unused slots hold zeros: what they take is missing from the sum. One run
with a 1 in every column gives that share, and one per kv head says whose V each query head reads.

How often a key was attended to is exact in bf16 up to 64 times, at any n; the number of stale slots while
an output tells 1/n from 1/(n+1), which is up to about n = 250 (beyond, that there are some shows until they are fewer
than one in 500).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from cases.ragged import indptr, query_rows
from cases.recipes import LogicalData, torch_dtype
from cases.schema import AttentionCase, Poison
from references.certificates.base import neutral_sinks
from references.visibility import visible_interval

Run = Callable[[LogicalData], Tensor]

MAX_RUNS = 64


@dataclass(frozen=True, slots=True)
class Attended:
    """What was seen against what should be.

    expected: bool [total_q, total_kv]; keys of all requests, packed
    times:    int64 [total_q, num_qo_heads, total_kv], how often each key was attended to
    unowned:  int64 [total_q, num_qo_heads], attended slots that hold no key of any request
    kv_head:  int64 [total_q, num_qo_heads], the kv head whose V was read, -1 where it is not one
    broken:   bool [total_q, num_qo_heads], rows that came back as NaN, or with no key at all
    """

    case: AttentionCase
    expected: Tensor
    times: Tensor
    unowned: Tensor
    kv_head: Tensor
    broken: Tensor

    @property
    def differs(self) -> Tensor:
        """bool [total_q, num_qo_heads]: rows that attended to another set of keys, or to another kv head."""
        own_head = torch.arange(self.case.num_qo_heads, device=self.times.device) // self.case.group_size
        other = (self.times != self.expected[:, None].long()).any(-1) | (self.unowned > 0)
        other |= (self.kv_head != own_head) & (self.times.sum(-1) > 0)
        return (other | self.broken) & self.expected.any(-1)[:, None]


def runs_needed(case: AttentionCase) -> int:
    return -(-case.total_kv // case.head_dim_vo) + 2


def expected_matrix(case: AttentionCase, device: torch.device | str) -> Tensor:
    """bool [total_q, total_kv] of the visibility rule, keys packed request after request."""
    rows = query_rows(case, device)
    first, last = visible_interval(case, rows)
    start = indptr([r.kv_len for r in case.requests], device, torch.int64)[rows.request]
    keys = torch.arange(case.total_kv, device=device)
    return (keys >= (start + first)[:, None]) & (keys < (start + last)[:, None])


def attended_matrix(case: AttentionCase, run: Run, device: torch.device | str) -> Attended:
    """X-ray a kernel. `run(data)` gives its out [total_q, num_qo_heads, head_dim_vo] on data, with unused
    slots zeroed. Raises ValueError if that would take more than MAX_RUNS runs."""
    if runs_needed(case) > MAX_RUNS:
        raise ValueError(f"an X-ray of {case.total_kv} keys takes {runs_needed(case)} runs; shrink the case first.")
    dim, heads = case.head_dim_vo, case.num_kv_heads
    share = torch.zeros((case.total_q, case.num_qo_heads, case.total_kv), dtype=torch.float64, device=device)
    for begin in range(0, case.total_kv, dim):
        count = min(dim, case.total_kv - begin)
        v = torch.zeros((case.total_kv, dim), device=device)
        v[torch.arange(begin, begin + count), torch.arange(count)] = 1.0
        share[:, :, begin : begin + count] = _run(case, run, v[:, None].expand(-1, heads, -1), device)[:, :, :count]
    by_head = torch.zeros((case.total_kv, heads, dim), device=device)
    for head in range(min(heads, dim)):
        by_head[:, head, head] = 1.0
    whose = _run(case, run, by_head, device)[:, :, :heads]
    total = _run(case, run, torch.ones((case.total_kv, heads, dim), device=device), device)[:, :, 0]
    broken = ~(share.isfinite().all(-1) & total.isfinite())
    share, total = share.nan_to_num(0.0), total.nan_to_num(0.0)
    smallest = torch.where(share > 0, share, torch.inf).amin(-1)
    times = torch.where(smallest.isfinite()[..., None], (share / smallest[..., None]).round(), 0.0).long()
    # total = (attended keys) / n and smallest = 1/n
    in_all = torch.where(smallest.isfinite(), 1 / smallest, 0.0).round()
    unowned = (in_all - times.sum(-1)).clamp(min=0).long()
    unowned = torch.where(total > 1 - 0.5 / in_all.clamp(min=1), 0, unowned)
    mostly = whose.nan_to_num(0.0)
    kv_head = torch.where(mostly.amax(-1) > 0.99 * total.clamp(min=1e-9), mostly.argmax(-1), -1)
    return Attended(
        case=case,
        expected=expected_matrix(case, device),
        times=times,
        unowned=unowned,
        kv_head=kv_head,
        broken=broken | (in_all == 0),
    )


def _run(case: AttentionCase, run: Run, v: Tensor, device: torch.device | str) -> Tensor:
    """fp64 out on q = 0, K of ones, and this V; in units of v_scale."""
    dtype, kv_dtype = torch_dtype(case.dtype), torch_dtype(case.kv_dtype)
    q = torch.zeros((case.total_q, case.num_qo_heads, case.head_dim_qk), dtype=dtype, device=device)
    k = torch.ones((case.total_kv, case.num_kv_heads, case.head_dim_qk), device=device).to(kv_dtype)
    data = LogicalData(q=q, k=k, v=v.to(kv_dtype).contiguous(), sinks=neutral_sinks(case, device))
    return run(data).double() / case.v_scale


LEVEL = Poison.ZERO
