"""A pass that leaves more than kernels of its kind is told; half an integer is no pass."""

from __future__ import annotations

import torch

from cases import AttentionCase, Request
from cases.batch import build_batch
from harness.adapters.protocol import AttentionOutput
from harness.adapters.registry import load_adapter
from harness.judging.certify import judge_certificate
from harness.judging.residuals import ONE_PASS, usual_residual
from harness.judging.traits import kernel_traits
from harness.verdict import Evidence
from references.certificates import RECIPES
from references.visibility import visible_count

CASE = AttentionCase(requests=(Request(200, 9), Request(3, 2)))


def judged(off: float) -> Evidence:
    """FLAT on a right output whose sum is `off` more in one column."""
    adapter = load_adapter("flash-attn-3@emulated")
    built = RECIPES["flat"].build(CASE, torch.device("cpu"))
    batch = build_batch(CASE, data=built.data)
    output = adapter.run(adapter.plan(batch), batch)
    out = output.out.float()
    out[:, :, 7] += off / visible_count(CASE)[:, None]
    moved = AttentionOutput(out.to(output.out.dtype), output.lse)
    return judge_certificate("flat", batch, built, moved, adapter.lse_base, kernel_traits(adapter))


def test_a_right_kernel_has_no_remark() -> None:
    evidence = judged(0.0)
    assert evidence.passed
    assert evidence.message == ""
    assert evidence.measure["s_max"] < ONE_PASS


def test_a_pass_that_is_further_off_than_usual_is_told() -> None:
    evidence = judged(0.25)
    assert evidence.passed
    assert ONE_PASS < evidence.measure["s_max"] < 0.5
    assert "look at it" in evidence.message


def test_the_next_integer_is_no_pass() -> None:
    assert judged(0.9).passed is False


def test_kernels_that_round_parts_may_leave_more() -> None:
    merged = kernel_traits(load_adapter("flashinfer-swa-merge@emulated"))
    assert usual_residual(merged) > usual_residual(kernel_traits(load_adapter("flash-attn-3@emulated")))
