"""Golden answers that are kept: the right one comes back, within the bytes allowed."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cases import AttentionCase, Request
from cases.batch import AttentionBatch
from cases.recipes import make_data
from harness.adapters.protocol import AttentionOutput
from harness.adapters.registry import load_adapter
from harness.judging import kept
from harness.judging.kept import KeptGolden
from harness.running.examine import examine
from harness.running.options import RunOptions
from harness.verdict import Verdict
from references.golden import golden_attention

CASE = AttentionCase(requests=(Request(9, 4), Request(0, 3)), sinks=True)
CPU = torch.device("cpu")
ADAPTER = "flash-attn-4@emulated"


def test_an_answer_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def counted(*arguments: Any, **options: Any) -> Any:
        calls.append(arguments)
        return golden_attention(*arguments, **options)

    monkeypatch.setattr(kept, "golden_attention", counted)
    cache, data = KeptGolden(1 << 30), make_data(CASE, "cpu")
    first = cache.get(CASE, data)
    assert cache.get(CASE, data) is first
    assert len(calls) == 1
    other = CASE.replace(seed=1)
    assert not torch.equal(cache.get(other, make_data(other, "cpu")).out, first.out)
    assert float((cache.get(CASE, data, sinks=False).lse - first.lse).abs().max()) > 1e-3
    assert len(calls) == 3


def test_bytes_are_bounded_and_the_oldest_goes_first() -> None:
    cases = [CASE.replace(seed=seed) for seed in range(6)]
    probe = KeptGolden(1 << 30)
    probe.get(CASE, make_data(CASE, "cpu"))
    cache = KeptGolden(3 * probe.bytes)
    answers = [cache.get(case, make_data(case, "cpu")) for case in cases]
    assert 0 < cache.bytes <= cache.limit
    assert cache.get(cases[5], make_data(cases[5], "cpu")) is answers[5]
    assert cache.get(cases[0], make_data(cases[0], "cpu")) is not answers[0]
    too_large = KeptGolden(probe.bytes - 1)
    too_large.get(CASE, make_data(CASE, "cpu"))
    assert too_large.bytes == 0


class Overwrites:
    """A kernel that leaves other inputs behind and answers for those."""

    def __init__(self) -> None:
        self.inner = load_adapter(ADAPTER)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def run(self, plan: Any, batch: AttentionBatch) -> AttentionOutput:
        batch.data.v.mul_(2)
        batch.v_pool.mul_(2)
        return self.inner.run(plan, batch)


def test_a_kernel_that_overwrites_its_inputs_is_wrong_and_the_next_one_is_judged_by_the_true_ones() -> None:
    case = CASE.replace(requests=(Request(9, 4), Request(2, 3)), sinks=False)
    options = RunOptions(evidence="bound")
    assert examine(case, Overwrites(), options, CPU).verdict is Verdict.WRONG
    assert examine(case, load_adapter(ADAPTER), options, CPU).verdict is Verdict.PASS
