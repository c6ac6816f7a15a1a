"""The visibility rule, in one place: which keys a query may see.

A query at absolute position q of a request with kv_len keys sees key k iff

    0 <= k < kv_len   and   (not causal or k <= q)   and   (window_left is None or k >= q - window_left)

so a causal window of `window_left` = L holds L+1 keys, the query's own among them. (HF's
`sliding_window` = W is L = W - 1.) The keys seen are always one interval; `visible_interval` gives
it and `visible_mask` writes it out.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from cases.ragged import Rows, query_rows, uploaded
from cases.schema import AttentionCase


def visible_interval(case: AttentionCase, rows: Rows) -> tuple[Tensor, Tensor]:
    """First and one-past-last visible key of query `rows`: two int64 [n]."""
    kv_lens = torch.tensor([r.kv_len for r in case.requests]).to(rows.position.device, non_blocking=True)[rows.request]
    last = torch.minimum(rows.position + 1, kv_lens) if case.causal else kv_lens
    if case.window_left is None:
        return torch.zeros_like(last), last
    return (rows.position - case.window_left).clamp(min=0), last


def visible_mask(first: Tensor, last: Tensor, key_positions: Tensor) -> Tensor:
    """bool [..., n, keys] from intervals int64 [..., n] and key positions int64 [keys] or [..., 1, keys]."""
    return (key_positions >= first[..., None]) & (key_positions < last[..., None])


def visible_count(case: AttentionCase, device: torch.device | str = "cpu") -> Tensor:
    """int64 [total_q]: how many keys each query row sees. Not to be written to: kept."""
    return _visible_count(case, str(device))


@functools.lru_cache(maxsize=4)
def _visible_count(case: AttentionCase, device: str) -> Tensor:
    first, last = visible_interval(case, query_rows(case, "cpu"))
    (count,) = uploaded(device, (last - first).clamp(min=0))
    return count
