"""Exact certificates as evidence: which recipes a case is given, and their verdicts."""

from __future__ import annotations

from cases.batch import AttentionBatch
from cases.schema import AttentionCase
from harness.adapters.protocol import AttentionOutput, LseBase
from harness.judging.compare import check_shape, natural_lse
from harness.judging.residuals import remark
from harness.verdict import Evidence
from references.certificates import RECIPES, CertificateData, KernelTraits, applicable

ALWAYS = "flat"


def chosen_recipes(case: AttentionCase, traits: KernelTraits, every: bool) -> tuple[list[str], list[Evidence]]:
    """Recipes to run, and evidence that says why others do not apply.

    By default FLAT and one more, which rotates with the case id, so that a suite runs them all; all
    of them if `every`.
    """
    reasons = {name: applicable(name, case, traits) for name in RECIPES}
    usable = [name for name, reason in reasons.items() if reason is None]
    outside = [Evidence(f"certificate/{name}", None, message=reason) for name, reason in reasons.items() if reason]
    if every:
        return usable, outside
    others = [name for name in usable if name != ALWAYS]
    picked = [name for name in usable if name == ALWAYS]
    if others:
        picked.append(others[int(case.id, 16) % len(others)])
    return picked, [] if picked else outside


def judge_certificate(
    name: str,
    batch: AttentionBatch,
    built: CertificateData,
    output: AttentionOutput,
    lse_base: LseBase,
    traits: KernelTraits,
) -> Evidence:
    """The verdict of one recipe on one output, as evidence."""
    case = batch.case
    shape = (case.total_q, case.num_qo_heads, case.head_dim_vo)
    wrong_shape = check_shape("out", output.out, shape)
    if output.lse is not None:
        wrong_shape = wrong_shape or check_shape("lse", output.lse, shape[:2])
    if wrong_shape:
        return Evidence(f"certificate/{name}", False, {}, wrong_shape)
    lse = None if output.lse is None else natural_lse(output.lse, lse_base)
    result = RECIPES[name].judge(case, built, output.out, lse, traits)
    if result.passed and result.judged == 0:
        reason = "what right kernels round reaches the next integer here; only the weight was judged"
        return Evidence(f"certificate/{name}", None if lse is None else True, result.measure(), reason)
    message = remark(result.s_max, traits) if result.passed and not result.message else result.message
    return Evidence(f"certificate/{name}", result.passed, result.measure(), message)
