"""The visibility rule against transformers' masks and sliding cache, at every point up to a limit.

A point is (P, E, W): P tokens in the cache, E new rows, `sliding_window` = W. For each, a real
`DynamicSlidingWindowLayer` is fed P keys and then E more, each key holding its own position, so that
what the cache hands to attention names the positions it kept; `get_mask_sizes` gives the offset that
transformers would mask with, and `eager_mask` with `sliding_window_causal_mask_function(W)` the mask. The
positions let through must be the interval of `references.visibility`, row by row.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cases.schema import AttentionCase, Request
from references.oracle.internals import Internals, OracleError, load_internals
from references.oracle.judge import Judge
from references.oracle.threads import one_thread


@dataclass(slots=True)
class MaskComparison:
    """points: (P, E, W) compared; full_points: (P, E) of a layer with no window; cells: (query, key)
    pairs in them; differences: pairs that disagree; first: the first of them, in words."""

    transformers: str
    limit: int
    points: int = 0
    full_points: int = 0
    cells: int = 0
    differences: int = 0
    first: str | None = None

    @property
    def ok(self) -> bool:
        return self.points > 0 and self.full_points > 0 and self.differences == 0

    def to_json(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "ok": self.ok}

    def sentence(self) -> str:
        return (
            f"masks: {self.points:,} points (P, E, W) up to {self.limit} and {self.full_points:,} points (P, E) "
            f"with no window, {self.cells:,} (query, key) pairs, {self.differences:,} differences"
            + ("." if self.first is None else f"; the first: {self.first}.")
        )


def compare_masks(
    limit: int = 40, *, judge: Judge | None = None, on_window: Callable[[int], None] | None = None
) -> MaskComparison:
    """Every 0 <= P <= limit, 1 <= E <= limit, 2 <= W <= limit, and every (P, E) with no window.

    W = 1 is left out: transformers' sliding cache keeps the last W - 1 tokens by a slice that keeps all
    when W is 1.
    """
    if limit < 2:
        raise OracleError(f"limit is {limit}; give 2 or more, the smallest window of transformers' sliding cache.")
    internals = load_internals()
    result = MaskComparison(internals.version, limit)
    for window in (None, *range(2, limit + 1)):
        if on_window is not None:
            on_window(window or 0)
        with one_thread():
            _compare_window(result, window, internals, judge or Judge())
    return result


def _compare_window(result: MaskComparison, window: int | None, internals: Internals, judge: Judge) -> None:
    """Every (P, E) at one window."""
    lengths = range(result.limit + 1)
    requests = tuple(Request(prefix, extend) for prefix in lengths for extend in lengths[1:])
    case = AttentionCase(requests=requests, window_left=None if window is None else window - 1)
    first, last = (bounds.view(-1, 1) for bounds in judge.interval(case))
    layers = [None if window is None else _prefilled(internals, window, prefix) for prefix in lengths]
    start = 0
    for prefix, extend in requests:
        rows = slice(start, start + extend)
        start += extend
        positions, mask = _transformers_view(internals, layers[prefix], window, prefix, extend)
        ours = (positions >= first[rows]) & (positions < last[rows])
        _tally(result, window, prefix, extend, positions, mask, ours, last[rows] - first[rows])


def _prefilled(internals: Internals, window: int, prefix: int) -> Any:
    """A sliding cache layer that has seen `prefix` tokens, each key holding its position."""
    layer = internals.sliding_layer(sliding_window=window)
    if prefix:
        keys = torch.arange(prefix).view(1, 1, prefix, 1)
        layer.update(keys, keys)
    return layer


def _transformers_view(
    internals: Internals, layer: Any, window: int | None, prefix: int, extend: int
) -> tuple[Tensor, Tensor]:
    """Positions int64 [n] of the keys that attention is handed, and which of them each new row sees,
    bool [extend, n]."""
    if layer is None or window is None:
        positions, offset, function = torch.arange(prefix + extend), 0, internals.causal_mask_function
        length = prefix + extend
    else:
        length, offset = layer.get_mask_sizes(extend)
        new = torch.arange(prefix, prefix + extend).view(1, 1, extend, 1)
        positions = copy.copy(layer).update(new, new)[0].flatten()
        function = internals.sliding_window_causal_mask_function(window)
    additive = internals.eager_mask(
        batch_size=1, q_length=extend, kv_length=length, q_offset=prefix, kv_offset=offset, mask_function=function
    )
    return positions, additive[0, 0] == 0


def _tally(
    result: MaskComparison,
    window: int | None,
    prefix: int,
    extend: int,
    positions: Tensor,
    mask: Tensor,
    ours: Tensor,
    count: Tensor,
) -> None:
    """Count one point. A visible key that the cache dropped shows as a row of fewer keys than `count`."""
    if window is None:
        result.full_points += 1
    else:
        result.points += 1
    result.cells += extend * (prefix + extend)
    if mask.shape == ours.shape and torch.equal(mask, ours) and torch.equal(ours.sum(1, keepdim=True), count):
        return
    if mask.shape != ours.shape:
        differences = extend * (prefix + extend)
    else:
        dropped = (count - ours.sum(1, keepdim=True)).clamp(min=0)
        differences = int((mask != ours).sum() + dropped.sum())
    result.differences += differences
    if result.first is None:
        result.first = (
            f"P={prefix} E={extend} W={window}: transformers keeps positions {positions.tolist()} and lets "
            f"{mask.sum(1).tolist()} keys through row by row, the rule {count.flatten().tolist()}"
        )
