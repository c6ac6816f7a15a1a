"""Scores that are exact multiples of ln 2, at any sm_scale and in any dtype.

A key belongs to a class and K says which: ones in the columns of its class, zeros elsewhere, exact in
every dtype down to fp8. The q row of a head holds the score wanted for each class, in the columns of
that class: raw / scale split into three pieces of the input dtype, whose products with 1 the fp32
accumulator adds exactly, spread over as many columns as there are so that each one counts.
With a softcap the raw score is cap * atanh(target / cap).
"""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

from cases.recipes import torch_dtype
from cases.schema import AttentionCase

LN2 = math.log(2.0)
PIECES = 3
RECONSTRUCTION = 2.0**-20  # what three pieces must reach, relative to the score


def max_classes(case: AttentionCase) -> int:
    return case.head_dim_qk // PIECES


def class_keys(case: AttentionCase, classes: Tensor, count: int) -> Tensor:
    """kv_dtype [total_kv, num_kv_heads, head_dim_qk] from classes int64 [total_kv, num_kv_heads]."""
    columns = _column_class(case, count).to(classes.device)
    return (classes[:, :, None] == columns).float().to(torch_dtype(case.kv_dtype))


def class_queries(case: AttentionCase, targets: list[list[float]], device: torch.device | str) -> Tensor:
    """dtype [total_q, num_qo_heads, head_dim_qk]; targets[h][c]: the natural capped score that head h
    gives to keys of class c. The same for every row."""
    rows = torch.tensor([_query(case, row) for row in targets], dtype=torch.float64)
    q = rows.to(torch_dtype(case.dtype)).to(device)
    return q.expand(case.total_q, -1, -1).contiguous()


def _copies(case: AttentionCase, count: int) -> int:
    return case.head_dim_qk // (PIECES * count)


def _column_class(case: AttentionCase, count: int) -> Tensor:
    """int64 [head_dim_qk]: the class that a column belongs to, -1 for the few left over."""
    column = torch.arange(case.head_dim_qk)
    return torch.where(column < _copies(case, count) * PIECES * count, column % count, -1)


def _query(case: AttentionCase, targets: list[float]) -> list[float]:
    count = len(targets)
    copies = _copies(case, count)
    row = [0.0] * case.head_dim_qk
    for c, target in enumerate(targets):
        pieces = _split(case, raw_score(case, target) / (case.scale * case.k_scale * copies))
        for i in range(copies * PIECES):
            row[i * count + c] = pieces[i % PIECES]
    return row


def raw_score(case: AttentionCase, target: float) -> float:
    """The score before softcap that comes out as `target`."""
    cap = case.logits_soft_cap
    return target if cap is None else cap * math.atanh(target / cap)


def _split(case: AttentionCase, value: float) -> list[float]:
    """Three numbers of the input dtype (bf16 for fp32: TF32 keeps them) that add up to `value`."""
    return list(_pieces(case.dtype, value))


@functools.lru_cache(maxsize=1024)  # a suite asks for the same few scores again and again
def _pieces(name: str, value: float) -> tuple[float, ...]:
    dtype = torch.bfloat16 if name == "float32" else torch_dtype(name)
    pieces = []
    for _ in range(PIECES):
        piece = float(torch.tensor(value, dtype=torch.float64).to(dtype))
        pieces.append(piece)
        value -= piece
    return tuple(pieces)


def unreachable(case: AttentionCase, target: float, count: int) -> str | None:
    """Why `target` cannot be had as the score of one of `count` classes, or None."""
    if count > max_classes(case):
        return f"head_dim_qk {case.head_dim_qk} holds {max_classes(case)} classes of keys, {count} are needed"
    cap = case.logits_soft_cap
    if cap is not None and abs(target) > MAX_OF_CAP * cap:
        return f"a softcap of {cap:g} leaves no room for weights of {math.exp(abs(target)):.3g}"
    wanted = raw_score(case, target) / (case.scale * case.k_scale * _copies(case, count))
    pieces = _split(case, wanted)
    if not all(map(math.isfinite, pieces)) or abs(sum(pieces) - wanted) > RECONSTRUCTION * abs(wanted):
        return f"sm_scale {case.scale:g} asks for queries that {case.dtype} cannot hold"
    return None


MAX_OF_CAP = 0.8  # of a softcap: beyond it tanh is too flat for exact weights
