"""What the oracle puts to the test: the references, or a planted error in their place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from cases.ragged import query_rows
from cases.recipes import LogicalData
from cases.schema import AttentionCase
from references.golden import golden_attention
from references.visibility import visible_interval


def golden_out(case: AttentionCase, data: LogicalData) -> Tensor:
    return golden_attention(case, data).out


def rule_interval(case: AttentionCase) -> tuple[Tensor, Tensor]:
    return visible_interval(case, query_rows(case, "cpu"))


@dataclass(frozen=True, slots=True)
class Judge:
    """out: (case, data) -> fp64 [total_q, num_qo_heads, head_dim_vo]; interval: case -> first and
    one-past-last visible key of every query row, int64 [total_q] each."""

    out: Callable[[AttentionCase, LogicalData], Tensor] = golden_out
    interval: Callable[[AttentionCase], tuple[Tensor, Tensor]] = rule_interval
