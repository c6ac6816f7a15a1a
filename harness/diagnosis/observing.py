"""What is looked at to explain a wrong output: the same few runs of the adapter and of each suspect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from cases.recipes import LogicalData
from cases.schema import AttentionCase, Poison
from harness.judging.compare import natural_lse
from harness.judging.residuals import ROUNDED_PARTS
from harness.judging.traits import kernel_traits
from harness.running.examine import AdapterFailure, Examiner
from references.certificates import RECIPES, CertificateData, applicable
from references.error_bounds import row_bounds
from references.golden import GoldenOutput, golden_attention
from references.traits import UNIT_ROUNDOFF, KernelTraits

REPEATS = 3
LSE_TOLERANCE = 2e-3  # two right kernels, each within 1e-3
LSE_RELATIVE = 2.0**-18


@dataclass(frozen=True, slots=True)
class Seen:
    """out: fp64 [total_q, num_qo_heads, head_dim_vo]; lse: fp64 natural [total_q, num_qo_heads] or None."""

    out: Tensor
    lse: Tensor | None


@dataclass(frozen=True, slots=True)
class Observed:
    """own: the case's own data, run REPEATS times; certified: the data of each recipe of `Truth.recipes`, once.

    zeroed:  own data with unused slots zeroed, where own gave NaN: what else is wrong shows there
    failure: the message of a run that raised; what was seen before it is kept.
    """

    own: tuple[Seen, ...] = ()
    certified: dict[str, Seen] = field(default_factory=dict)
    zeroed: Seen | None = None
    failure: str | None = None

    @property
    def repeats(self) -> bool:
        """True if every run on the same data gave the same bits."""
        return all(_identical(self.own[0], other) for other in self.own[1:])


def _identical(a: Seen, b: Seen) -> bool:
    def same(x: Tensor, y: Tensor) -> bool:
        return bool(((x == y) | (x.isnan() & y.isnan())).all())

    return same(a.out, b.out) and (a.lse is None or b.lse is None or same(a.lse, b.lse))


@dataclass(frozen=True, slots=True)
class Truth:
    """What the case should give, and how far two right kernels may differ on it.

    golden, bound: own data; recipes: certificates looked at; level: poison that the observations run at
    traits: what the kernel under suspicion declares of its roundings
    """

    case: AttentionCase
    golden: GoldenOutput
    golden_lse: Tensor
    bound: Tensor
    recipes: dict[str, CertificateData]
    level: Poison
    traits: KernelTraits


def find_truth(examiner: Examiner, level: Poison, data: LogicalData, recipes: Sequence[str] = ("flat",)) -> Truth:
    """Golden attention and row bounds of the case's own `data`, and the answers of those recipes that apply."""
    case, traits = examiner.case, kernel_traits(examiner.adapter)
    golden = golden_attention(case, data, moments=True)
    lse = golden.lse
    if data.sinks is not None and not examiner.adapter.lse_includes_sink:
        lse = golden_attention(case, LogicalData(data.q, data.k, data.v, None)).lse
    built = {
        name: RECIPES[name].build(case, examiner.device)
        for name in dict.fromkeys(recipes)
        if name in RECIPES and applicable(name, case, traits) is None
    }
    return Truth(case, golden, lse, row_bounds(case, data, golden, traits), built, level, traits)


def observe(
    examiner: Examiner, recipes: Mapping[str, CertificateData], level: Poison, repeats: int = REPEATS
) -> Observed:
    """Run the adapter on own data `repeats` times, then on each recipe's; what it raises is kept, not raised."""
    own: list[Seen] = []
    try:
        for _ in range(repeats):
            own.append(seen(examiner, None, level))
        certified = {name: seen(examiner, built.data, level) for name, built in recipes.items()}
        poisoned = level is not Poison.ZERO and any(bool(one.out.isnan().any()) for one in own)
        zeroed = seen(examiner, None, Poison.ZERO) if poisoned else None
    except AdapterFailure as failure:
        return Observed(tuple(own), failure=str(failure))
    return Observed(tuple(own), certified, zeroed)


def seen(examiner: Examiner, data: LogicalData | None, level: Poison) -> Seen:
    _, output = examiner.run(data, level)
    lse = None if output.lse is None else natural_lse(output.lse, examiner.adapter.lse_base)
    return Seen(output.out.double(), lse)


# -- distances -----------------------------------------------------------------------------------
def difference(a: Seen, b: Seen, bound: Tensor | float, dtype: str) -> Tensor:
    """How far apart two outputs are, in units of what two right kernels may differ: [total_q, num_qo_heads].

    Above 1 they are different. `bound` is what one right kernel may be off by; outputs much larger than
    the right ones (stale slots) are allowed their own rounding. NaN agrees with NaN alone.
    """
    size = torch.maximum(a.out.abs(), b.out.abs())
    tolerance = 2 * bound + 4 * UNIT_ROUNDOFF[dtype] * size + 1e-30
    ratio = ((a.out - b.out).abs() / tolerance).nan_to_num(nan=torch.inf)
    ratio = torch.where((a.out == b.out) | (a.out.isnan() & b.out.isnan()), 0.0, ratio).amax(-1)
    if a.lse is None or b.lse is None:
        return ratio
    allowed = LSE_TOLERANCE + LSE_RELATIVE * torch.where(a.lse.isfinite(), a.lse.abs(), 0.0)
    off = ((a.lse - b.lse).abs() / allowed).nan_to_num(nan=torch.inf)
    off = torch.where((a.lse == b.lse) | (a.lse.isnan() & b.lse.isnan()), 0.0, off)
    return torch.maximum(ratio, off)


def certificate_slack(built: CertificateData, traits: KernelTraits) -> Tensor:
    """Absolute slack for comparing two outputs on a recipe's data: 1/16 of one key [total_q, num_qo_heads, 1].

    A kernel that rounds its splits is compared with an emulation that does not: by what such kernels leave of a key,
    and not in special columns, where nothing bounds that. Then [total_q, num_qo_heads, head_dim_vo].
    """
    weight = built.exact.weight.double().clamp(min=1)[:, :, None]
    if not traits.rounded_splits:
        return 1 / (32 * weight)
    slack = (ROUNDED_PARTS / (2 * weight)).repeat(1, 1, built.data.v.shape[-1])
    slack[:, :, list(built.special)] = torch.inf
    return slack


def wrong_rows(truth: Truth, observed: Observed, examiner: Examiner) -> Tensor:
    """bool [total_q, num_qo_heads]: rows over their bound (or LSE) on own data; if none, those of certificates."""
    golden = truth.golden
    wrong = torch.zeros(golden.lse.shape, dtype=torch.bool, device=golden.lse.device)
    for one in observed.own:
        inside = (one.out - golden.out).abs() <= truth.bound
        wrong |= ~inside.all(-1) & golden.lse.isfinite()
        if one.lse is not None:
            close = (one.lse - truth.golden_lse).abs() <= 1e-3 + LSE_RELATIVE * truth.golden_lse.abs()
            wrong |= ~close & truth.golden_lse.isfinite()
    if bool(wrong.any()):
        return wrong
    traits = kernel_traits(examiner.adapter)
    for name, one in observed.certified.items():
        wrong |= RECIPES[name].judge(truth.case, truth.recipes[name], one.out, one.lse, traits).wrong_rows
    return wrong
