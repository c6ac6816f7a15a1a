"""The kv cache after a run: what a kernel may leave there, and what is seen of the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from cases import AttentionCase, Request
from cases.batch import AttentionBatch, build_batch
from cases.schema import Execution, KvLayout, Poison
from harness.adapters.protocol import AttentionOutput
from harness.adapters.registry import load_adapter
from harness.judging.cache import compare_cache
from harness.running.examine import examine
from harness.running.options import RunOptions
from harness.running.together import examine_together
from harness.verdict import Verdict

CASE = AttentionCase(requests=(Request(20, 3), Request(5, 2)), page_size=8, num_qo_heads=4, num_kv_heads=2)
CASES = (
    CASE,
    CASE.replace(kv_layout=KvLayout.HND),
    CASE.replace(kv_dtype="float8_e4m3fn", poison=Poison.ZERO),
    CASE.replace(dtype="float32", kv_dtype="float32", poison=Poison.NAN),
)


def slot(batch: AttentionBatch, request: int, position: int) -> int:
    page = int(batch.page_table[request, position // batch.case.page_size])
    return page * batch.case.page_size + position % batch.case.page_size


def put(pool: torch.Tensor, batch: AttentionBatch, at: int, value: float) -> None:
    """One number of one slot."""
    by_token = pool if batch.case.kv_layout is KvLayout.NHD else pool.transpose(1, 2)
    page, offset = divmod(at, batch.case.page_size)
    by_token[page, offset, 1, 7] = torch.tensor(value).to(pool.dtype)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.kv_layout}-{case.kv_dtype}-{case.poison}")
class TestComparing:
    def test_a_cache_that_is_left_alone_or_has_the_new_rows_holds(self, case: AttentionCase) -> None:
        batch = build_batch(case)
        assert compare_cache(batch, batch.data).passed
        batch.write_new_rows()
        assert compare_cache(batch, batch.data).passed

    @pytest.mark.parametrize(
        ("place", "said"),
        [
            (lambda b: slot(b, 0, 9), "request 0, position 9 "),
            (lambda b: slot(b, 1, 6), "request 1, position 6 "),
            (lambda b: slot(b, 0, 23), "request 0, unused position 23 "),
            (lambda b: 3, "page 0, offset 3, which no request owns"),
        ],
        ids=["cached", "new", "unused", "unowned"],
    )
    @pytest.mark.parametrize("pool", ["k_pool", "v_pool"])
    def test_one_number_anywhere_is_seen_and_placed(
        self, case: AttentionCase, pool: str, place: Callable[[AttentionBatch], int], said: str
    ) -> None:
        batch = build_batch(case)
        batch.write_new_rows()
        put(getattr(batch, pool), batch, place(batch), 3.0)
        evidence = compare_cache(batch, batch.data)
        assert evidence.passed is False
        assert evidence.measure["slots"] == 1
        assert said in evidence.message


def test_a_graph_may_write_padding_rows_to_page_0_where_that_is_declared() -> None:
    eager, graph = build_batch(CASE), build_batch(CASE.replace(execution=Execution(capture_requests=CASE.requests)))
    for batch in (eager, graph):
        put(batch.k_pool, batch, 3, 3.0)
        assert compare_cache(batch, batch.data).passed is False
    assert compare_cache(graph, graph.data, pads_page_0=True).passed
    assert compare_cache(eager, eager.data, pads_page_0=True).passed is False
    put(graph.k_pool, graph, slot(graph, 0, 9), 3.0)
    assert "position 9 " in compare_cache(graph, graph.data, pads_page_0=True).message


@pytest.mark.parametrize("change", [lambda pool: None, lambda pool: pool.flatten(0, 1), lambda pool: pool.float()])
def test_pools_that_were_replaced_are_not_compared(change: Callable[[torch.Tensor], Any]) -> None:
    batch = build_batch(CASE)
    batch.k_pool = change(batch.k_pool)
    evidence = compare_cache(batch, batch.data)
    assert evidence.passed is None
    assert "other pools" in evidence.message


class Overwriting:
    """Right, and leaves another value at the oldest key of the first request."""

    def __init__(self) -> None:
        self._right: Any = load_adapter("flash-attn-3@emulated")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._right, name)

    def run(self, plan: Any, batch: AttentionBatch) -> AttentionOutput:
        output: AttentionOutput = self._right.run(plan, batch)
        put(batch.v_pool, batch, slot(batch, 0, 0), 7.0)
        return output


@pytest.mark.parametrize("evidence", ["default", "certificate", "all"])
def test_a_kernel_that_overwrites_the_cache_is_wrong(evidence: str) -> None:
    record = examine(CASE, Overwriting(), RunOptions(evidence=evidence, repeats=2), torch.device("cpu"))
    assert record.verdict is Verdict.WRONG
    failed = [e for e in record.evidence if e.passed is False and e.kind == "cache"]
    assert [e.measure["slots"] for e in failed] == [1]
    if evidence == "default":
        assert record.reason.startswith("1 slot of the kv cache holds neither")
        assert "request 0, position 0 " in record.reason


class Zeroing(Overwriting):
    """What it writes over what was there is what a zeroed slot holds."""

    def run(self, plan: Any, batch: AttentionBatch) -> AttentionOutput:
        output: AttentionOutput = self._right.run(plan, batch)
        put(batch.v_pool, batch, slot(batch, 0, 23), 0.0)
        return output


def test_zeros_over_stale_values_leaked_nothing() -> None:
    record = examine(CASE, Zeroing(), RunOptions(), torch.device("cpu"))
    assert record.verdict is Verdict.WRONG, "POISONED is what leaked into an output"
    assert "unused position 23 " in record.reason


def test_a_kernel_that_overwrites_only_where_queries_are_not_zero_is_seen() -> None:
    class OnRealData(Overwriting):
        def run(self, plan: Any, batch: AttentionBatch) -> AttentionOutput:
            return super().run(plan, batch) if bool(batch.q.any()) else self._right.run(plan, batch)

    assert examine(CASE, OnRealData(), RunOptions(), torch.device("cpu")).verdict is Verdict.WRONG


def test_a_case_without_a_certificate_is_looked_at_too() -> None:
    case = CASE.replace(head_dim_qk=16, head_dim_vo=16)
    record = examine(case, Overwriting(), RunOptions(), torch.device("cpu"))
    assert not [e for e in record.evidence if e.kind.startswith("certificate/") and e.passed]
    assert record.verdict is Verdict.WRONG


def test_beside_other_cases_too() -> None:
    cases = [CASE, CASE.replace(seed=1), CASE.replace(seed=2)]
    records = examine_together(cases, Overwriting(), RunOptions(), torch.device("cpu"))
    assert [record.verdict for record in records] == [Verdict.WRONG] * 3


def test_an_explanation_says_so() -> None:
    from harness.diagnosis.explaining import explain
    from harness.running.examine import Examiner, Stopwatch

    adapter, device = Overwriting(), torch.device("cpu")
    record = examine(CASE, adapter, RunOptions(), device)
    told = explain(Examiner(CASE, adapter, device, Stopwatch(device, lambda _: None)), record)
    assert told.lines[0].startswith("every row is within its bound, but the path overwrites the kv cache: 1 slot")
    assert "request 0, position 0 " in told.lines[0]
