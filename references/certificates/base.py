"""What a certificate is: data whose right answer is an integer, and that integer."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from cases.recipes import LogicalData
from cases.schema import AttentionCase
from references.certificates.exact import Intervals, Sums, interval_sums, packed_intervals
from references.traits import KernelTraits

THRESHOLD = 0.5  # another integer is nearer
MIN_HEAD_DIM = 32  # columns; below it, too few code words tell wrong sets of keys apart


@dataclass(frozen=True, slots=True)
class CertificateData:
    """Inputs of one certificate on one case, and the exact answer.

    data:        inputs for `build_batch(case, data=...)`
    codes:       int8 [total_kv, num_kv_heads, head_dim_vo]: V in units of v_scale
    weights:     int8 [total_kv, num_qo_heads], the weight of each key; None: 1
    exact:       sums over the visible keys; the right output is v_scale * code / (weight + sink mass)
    intervals:   the visible keys of each row
    lse_offset:  fp64 [num_qo_heads], natural: LSE = offset + ln(weight + sink mass)
    sink_mass:   fp64 [num_qo_heads], e^sink, or None
    sum_bound:   |code| over any contiguous set of keys, in the plain columns
    special:     columns whose sums are not bounded, and what they are called
    max_score:   largest |score| of a key that counts: what a relative error of scores acts on
    count_margin: how far the recovered weight may be off before it is another answer
    targets:     int64 [total_q, num_qo_heads], the one packed key that counts, for SELECT
    """

    data: LogicalData
    codes: Tensor
    exact: Sums
    intervals: Intervals
    lse_offset: Tensor
    sum_bound: int
    weights: Tensor | None = None
    sink_mass: Tensor | None = None
    special: dict[int, str] = field(default_factory=dict)
    max_score: float = 0.0
    count_margin: float = THRESHOLD
    targets: Tensor | None = None

    def first_leg(self, case: AttentionCase) -> Sums:
        """The sums over the visible keys of the cached prefix."""
        if self.targets is not None:
            inside = (self.targets < self.intervals.middle[:, None]).long()
            return Sums(self.exact.code * inside[:, :, None], inside)
        return interval_sums(case, self.codes, self.weights, self.intervals.begin, self.intervals.middle)


@dataclass(frozen=True, slots=True)
class CertificateResult:
    """The verdict of one certificate on one output.

    s_max:      largest distance of out * weight from its integer, over what was judged
    n_max:      largest distance of exp(LSE) from its weight; None: no LSE was given
    judged:     share of output elements that were judged (columns whose rounding could reach the
                threshold are not)
    wrong_rows: bool [total_q, num_qo_heads]
    first:      request, query position, head of the first wrong row, or None
    """

    recipe: str
    passed: bool
    s_max: float
    n_max: float | None
    judged: float
    wrong_rows: Tensor
    message: str
    first: tuple[int, int, int] | None = None

    def measure(self) -> dict[str, Any]:
        """Plain JSON values for a record; what is infinite or NaN, which JSON has no number for, is None."""
        return {
            "s_max": self.s_max if math.isfinite(self.s_max) else None,
            "n_max": self.n_max if self.n_max is not None and math.isfinite(self.n_max) else None,
            "judged": self.judged,
            "wrong_rows": int(self.wrong_rows.sum()),
            "first": None if self.first is None else list(self.first),
        }


Build = Callable[[AttentionCase, "torch.device | str"], CertificateData]
Domain = Callable[[AttentionCase, KernelTraits], str | None]


def everywhere(case: AttentionCase, traits: KernelTraits) -> str | None:
    """No limits beyond those of every certificate."""
    del case, traits
    return None


@dataclass(frozen=True, slots=True)
class Certificate:
    """One recipe. `sees` and `blind_to` name faults as tests/certificates/ does; tests prove both."""

    name: str
    summary: str
    build: Build
    sees: tuple[str, ...]
    blind_to: tuple[str, ...]
    domain: Domain = field(default=everywhere)

    def judge(
        self,
        case: AttentionCase,
        built: CertificateData,
        out: Tensor,
        lse: Tensor | None,
        traits: KernelTraits,
    ) -> CertificateResult:
        """Judge out [total_q, num_qo_heads, head_dim_vo] and natural lse [total_q, num_qo_heads]."""
        from references.certificates.judge import judge

        return judge(self.name, case, built, out, lse, traits)


def visible_sums(
    case: AttentionCase, codes: Tensor, weights: Tensor | None, device: torch.device | str
) -> tuple[Sums, Intervals]:
    """The exact answer and the intervals it stands on."""
    intervals = packed_intervals(case, device)
    return interval_sums(case, codes, weights, intervals.begin, intervals.end), intervals


def per_head(case: AttentionCase, value: float, device: torch.device | str) -> Tensor:
    return torch.full((case.num_qo_heads,), value, dtype=torch.float64, device=device)


NO_SINK = -(2.0**20)  # e^s is 0 in fp32 beside any score of a recipe, and bf16 holds it exactly


def neutral_sinks(case: AttentionCase, device: torch.device | str) -> Tensor | None:
    """Sinks that weigh nothing, for recipes that are not about sinks."""
    return torch.full((case.num_qo_heads,), NO_SINK, device=device) if case.sinks else None
