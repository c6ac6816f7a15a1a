"""The engine: finds, shrinks, explains, sets aside, goes on; the same again for the same seed."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import threading
from typing import Any

import pytest

from cases import AttentionCase
from harness.diagnosis.explaining import Explanation
from harness.errors import UsageError
from harness.fuzzing.finding import Finding
from harness.fuzzing.kernels import LocalKernels
from harness.fuzzing.knowledge import Knowledge, Known
from harness.fuzzing.polishing import polish, simpler_cases
from harness.fuzzing.signature import edge_of, failure_type, kind_of, traits
from harness.record import Record
from harness.running.options import RunOptions
from harness.verdict import Evidence, Stability, Verdict
from tests.fuzzing.support import Kept, local_engine

FA4 = "flash-attn-4@emulated"
SWA = "flashinfer-swa-merge@emulated"
CASE = AttentionCase(requests=((5, 3), (0, 2)), window_left=4)  # type: ignore[arg-type]


def test_a_finding_is_small_confirmed_and_named() -> None:
    engine, kept = local_engine(SWA, "swa-merge-window-missing", seed=1, examples=12)
    findings = engine.run()
    assert [f.explanation.fault for f in findings] == ["swa-merge-window-missing"]
    found = findings[0]
    assert found.record.case.total_kv <= 4
    assert found.original.case.total_kv > found.record.case.total_kv
    assert found.record.stability is Stability.DETERMINISTIC
    assert found.record.explanation == found.explanation.lines
    assert kept.findings == findings
    assert len({case.id for case in kept.drawn}) == len(kept.drawn) == 12
    again = [r for r in kept.records if r.explanation]
    assert again, "later failures of the same fault are attributed to the finding"
    assert all("the same as finding flashinfer-swa-merge-emulated--" in r.explanation[0] for r in again)


def test_several_faults_at_once_are_several_findings() -> None:
    planted = ("window-one-too-wide", "last-partial-page-missing", "softcap-ignored", "graph-lengths-of-capture")
    engine, _ = local_engine(FA4, "+".join(planted), seed=1, examples=12)
    assert sorted(str(f.explanation.fault) for f in engine.run()) == sorted(planted)


def test_nothing_is_found_in_a_right_adapter() -> None:
    engine, kept = local_engine(FA4, seed=3, examples=60)
    assert engine.run() == []
    assert {r.verdict for r in kept.records} == {Verdict.PASS}


def test_a_seed_is_a_sequence_of_cases_whatever_is_found() -> None:
    def drawn(seed: int, fault: str | None = None, examples: int = 15) -> list[str]:
        engine, kept = local_engine(SWA, fault, seed=seed, examples=examples)
        engine.run()
        return [case.id for case in kept.drawn]

    first = drawn(5, "swa-merge-window-missing")
    assert drawn(5, "swa-merge-window-missing") == first
    assert drawn(6, "swa-merge-window-missing") != first
    assert drawn(5)[:6] == drawn(5, examples=6)  # a longer session begins as a shorter one


IN_A_FRESH_PROCESS = """
import torch
torch.set_num_threads(1)
from tests.fuzzing.support import local_engine
engine, kept = local_engine("flashinfer-paged-fa2@emulated", "last-partial-page-missing", seed=9, examples=10)
engine.run()
print([case.id for case in kept.drawn], [f.record.case.id for f in engine.findings])
"""


def test_a_seed_gives_the_same_session_in_another_process() -> None:
    runs = [
        subprocess.run([sys.executable, "-c", IN_A_FRESH_PROCESS], capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    ]
    assert runs[0] == runs[1]
    assert runs[0].count("'") > 20


class Counting(LocalKernels):
    """Counts what is run, and can be told to change its mind."""

    flaky = False

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self.ran: list[str] = []

    def examine(self, case: AttentionCase, options: RunOptions) -> Record:
        self.ran.append(case.id)
        record = super().examine(case, options)
        if self.flaky and self.ran.count(case.id) > 1 and record.verdict.is_finding:
            return record.replace(verdict=Verdict.PASS, evidence=(), reason="")
        return record


def test_no_case_is_run_twice_but_to_confirm() -> None:
    kernels = Counting(SWA, "window-one-too-wide")
    engine, _ = local_engine(SWA, "window-one-too-wide", kernels, seed=2, examples=20)
    findings = engine.run()
    confirmed = {f.record.case.id for f in findings}
    assert {case for case in kernels.ran if kernels.ran.count(case) > 1} == confirmed
    assert all(kernels.ran.count(case) == 4 for case in confirmed)


def test_a_failure_that_does_not_come_back_is_kept_as_flaky() -> None:
    kernels = Counting(SWA, "window-one-too-wide")
    kernels.flaky = True
    engine, _ = local_engine(SWA, "window-one-too-wide", kernels, seed=2, examples=6)
    findings = engine.run()
    assert findings
    assert findings[0].record.stability is Stability.FLAKY


def test_halting_while_shrinking_keeps_the_finding() -> None:
    engine, kept = local_engine(SWA, "window-one-too-wide", seed=2, examples=100)
    halt: threading.Event = engine.halt

    class Halting(Kept):
        def on_shrink(self, record: Record) -> None:
            super().on_shrink(record)
            if len(self.steps) == 5:
                halt.set()

    halting = Halting()
    engine.listener = halting
    findings = engine.run()
    assert len(findings) == 1
    assert findings[0].explanation.lines == ("not explained: the session was interrupted.",)
    assert len(halting.steps) == 5
    assert findings[0].record.case.total_kv <= findings[0].original.case.total_kv
    assert kept.records == []


class DiesWhereTheWindowCuts(LocalKernels):
    """Its process would die of every window that cuts a request, whatever the request is made of."""

    def examine(self, case: AttentionCase, options: RunOptions) -> Record:
        del options
        cuts = case.window_left is not None and case.max_kv_len > case.window_left + 1
        if cuts:
            return Record(case, self.adapter.name, Verdict.CRASH, reason="the worker died in run with exit code 3")
        return Record(case, self.adapter.name, Verdict.PASS)

    def explain(self, *arguments: Any) -> Explanation:
        return Explanation(("not explained: the case ends the process that would explain it.",))


@pytest.mark.parametrize("steps", [3, 20])
def test_halting_while_a_second_finding_is_shrunk_keeps_it(steps: int) -> None:
    """It is of the first one's kind, and the first was shrunk to something smaller."""
    engine, _ = local_engine(SWA, kernels=DiesWhereTheWindowCuts(SWA), seed=1, examples=300)

    class Halting(Kept):
        def on_shrink(self, record: Record) -> None:
            super().on_shrink(record)
            self.since += bool(engine.findings)
            if self.since == steps:
                engine.halt.set()

        since = 0

    engine.listener = Halting()
    first, second = engine.run()
    assert engine.halt.is_set()
    assert second.explanation.lines == ("not explained: the session was interrupted.",)
    assert second.edge != first.edge
    assert first.record.case.total_kv < second.record.case.total_kv <= second.original.case.total_kv


class Taken(LocalKernels):
    """Its worker is taken away in the middle of a call of `where`, as a session does on Ctrl-C."""

    def __init__(self, where: str) -> None:
        super().__init__(SWA, "window-one-too-wide")
        self.where, self.failed, self.halt = where, False, threading.Event()

    def _call(self, name: str) -> None:
        if name == self.where and self.failed:
            self.halt.set()
        if self.halt.is_set():
            raise UsageError("a worker was asked for after its end.")

    def examine(self, case: AttentionCase, options: RunOptions) -> Record:
        self._call("examine")
        record = super().examine(case, options)
        self.failed |= record.verdict.is_finding
        return record

    def confirm(self, case: AttentionCase, options: RunOptions) -> Record:
        self._call("confirm")
        return super().confirm(case, options)

    def mend(self, case: AttentionCase) -> AttentionCase | None:
        self._call("mend")
        return super().mend(case)

    def explain(self, *arguments: Any) -> Explanation:
        self._call("explain")
        return super().explain(*arguments)


@pytest.mark.parametrize("where", ["examine", "mend", "confirm", "explain"])
def test_a_finding_outlives_the_worker_that_is_taken_away(where: str) -> None:
    kernels = Taken(where)
    engine, kept = local_engine(SWA, kernels=kernels, seed=2, examples=100)
    engine.halt = kernels.halt
    findings = engine.run()
    assert kernels.halt.is_set()
    assert [finding.explanation.lines for finding in findings] == [("not explained: the session was interrupted.",)]
    assert kept.findings == findings
    assert findings[0].record.verdict is Verdict.WRONG


# -- telling findings apart ------------------------------------------------------------------------
def wrong(case: AttentionCase = CASE, **changes: object) -> Record:
    return Record(case, "a", Verdict.WRONG).replace(**changes)


@pytest.mark.parametrize(
    ("record", "kind"),
    [
        (wrong(evidence=(Evidence("bound", False), Evidence("lse", True))), "wrong"),
        (wrong(evidence=(Evidence("atol", False, {"not_finite": 3}),)), "not finite"),
        (wrong(evidence=(Evidence("bound", True), Evidence("cache", False))), "cache overwritten"),
        (wrong(evidence=(Evidence("bound", False), Evidence("cache", False))), "wrong"),
        (wrong(verdict=Verdict.POISONED), "poisoned"),
        (wrong(verdict=Verdict.TIMEOUT, reason="no answer within 2 s in run"), "timeout"),
        (wrong(verdict=Verdict.OUT_OF_MEMORY), "out of memory"),
        (
            wrong(verdict=Verdict.CRASH, reason="run raised RuntimeError: index 17 at 0x7f2a, size 3.5\nmore"),
            "crash: run raised RuntimeError: index # at #, size #",
        ),
        (
            wrong(
                verdict=Verdict.CRASH,
                reason="the device was lost: CUDA error: an illegal memory access; first seen when run raised ...",
            ),
            "crash: the device was lost: CUDA error: an illegal memory access",
        ),
    ],
)
def test_kinds(record: Record, kind: str) -> None:
    assert kind_of(record) == kind


def test_a_pass_has_no_kind() -> None:
    with pytest.raises(ValueError, match="did not fail"):
        kind_of(wrong(verdict=Verdict.PASS))


def test_each_kind_has_an_exception_type_of_its_own() -> None:
    assert failure_type("wrong") is failure_type("wrong")
    assert failure_type("wrong") is not failure_type("poisoned")


def test_a_case_with_more_to_it_looks_like_a_known_finding() -> None:
    small = AttentionCase(requests=((1, 1),), window_left=0, num_qo_heads=1, num_kv_heads=1)  # type: ignore[arg-type]
    known = Known("n", None, [], [("wrong", traits(small))])
    assert known.looks_like("wrong", traits(CASE))
    assert not known.looks_like("poisoned", traits(CASE))
    assert not known.looks_like("wrong", traits(CASE.replace(window_left=None)))
    assert edge_of(small.replace(window_left=None, page_size=1, page_order="contiguous")) == "prefix"


def test_what_was_settled_is_known_whatever_reproduces_it() -> None:
    """Without this a session would find the same again for ever."""
    knowledge = Knowledge(lambda record, groups: None)
    explained, plain = found(CASE, "f", "g"), found(CASE.replace(window_left=None), None)
    for finding in (explained, plain):
        knowledge.add(finding, finding.record)
        assert knowledge.name_of(finding.record) is not None
    assert knowledge.groups == [["f", "g"]]
    other = wrong(verdict=Verdict.POISONED)
    assert knowledge.name_of(other) is None
    knowledge.learn(knowledge.known[0], other)
    assert knowledge.name_of(other) == knowledge.known[0].name


def test_faults_that_reproduce_more_come_first() -> None:
    knowledge = Knowledge(lambda record, groups: [(0, "g")])
    knowledge.add(found(CASE, "f", "g"))
    assert knowledge.name_of(wrong(CASE.replace(seed=4))) == knowledge.known[0].name
    assert knowledge.groups == [["g", "f"]]


def test_cases_of_a_known_hang_are_passed_over_but_for_one_in_ten() -> None:
    hang = found(AttentionCase(requests=((1, 1),), page_size=1), None)  # type: ignore[arg-type]
    record = hang.record.replace(verdict=Verdict.TIMEOUT)
    knowledge = Knowledge(lambda record, groups: None)
    assert not knowledge.is_passed_over(CASE)
    knowledge.add(dataclasses.replace(hang, record=record), record)
    assert [knowledge.is_passed_over(CASE) for _ in range(10)] == [True] * 9 + [False]
    assert not knowledge.is_passed_over(AttentionCase(requests=((0, 1),), page_size=1))  # type: ignore[arg-type]


def test_a_failure_too_slight_to_explain_still_belongs_to_what_is_known() -> None:
    case = AttentionCase(
        requests=((0, 1),),  # type: ignore[arg-type]
        num_qo_heads=4,
        num_kv_heads=1,
        head_dim_qk=128,
        head_dim_vo=128,
        page_size=1,
        page_order="contiguous",
        logits_soft_cap=50.0,
    )
    kernels = LocalKernels(FA4, "softcap-ignored")
    options = RunOptions(fault="softcap-ignored", rerun=False)
    record = kernels.examine(case, options)
    assert kind_of(record) == "wrong"
    assert kernels.which_known(record, [["window-ignored"], ["softcap-ignored"]], options) == [(1, "softcap-ignored")]
    assert kernels.which_known(record, [["window-ignored"]], options) is None


# -- polishing -------------------------------------------------------------------------------------
def test_polishing_leaves_what_the_failure_needs() -> None:
    start = AttentionCase(
        requests=((30, 4), (3, 1), (0, 9)),  # type: ignore[arg-type]
        window_left=11,
        logits_soft_cap=2.0,
        num_qo_heads=8,
        num_kv_heads=2,
        head_dim_qk=128,
        head_dim_vo=128,
        page_size=16,
        seed=3,
        recipe="spiky",
    )
    left = polish(start, lambda case: case.window_left is not None and case.max_kv_len > case.window_left + 1)
    assert (left.num_requests, left.total_kv) == (1, 2)
    assert (left.window_left, left.logits_soft_cap, left.page_size, left.recipe) == (0, None, 1, "normal")
    assert (left.num_qo_heads, left.num_kv_heads, left.head_dim_qk) == (1, 1, 64)


def test_a_page_edge_moves_with_the_page() -> None:
    start = AttentionCase(requests=((16, 1),), page_size=16, num_qo_heads=1, num_kv_heads=1)  # type: ignore[arg-type]
    left = polish(start, lambda case: case.page_size > 1 and any(r.kv_len > case.page_size for r in case.requests))
    assert (left.page_size, left.total_kv) == (2, 3)


def test_polishing_ends() -> None:
    seen = list(simpler_cases(CASE))
    assert CASE not in seen
    assert len(seen) > 10
    tried: list[AttentionCase] = []
    polish(CASE, lambda case: tried.append(case) is None, steps=50)
    assert len(tried) <= 50
    assert len(set(tried)) == len(tried)


def found(case: AttentionCase, fault: str | None, *equals: str, kind: str = "wrong") -> Finding:
    told = Explanation((), fault, equals=equals)
    return Finding("a", kind, edge_of(case), wrong(case), wrong(case), told, 1, 1)


def test_findings_of_two_engines_that_are_one_bug() -> None:
    other = CASE.replace(requests=((6, 3), (0, 2)), seed=1)
    assert found(CASE, "f").is_same(found(other, "f"))
    assert found(CASE, "f", "g").is_same(found(other, "g", "f"))
    assert found(CASE, "f").is_same(found(CASE, "g"))  # the same small case
    assert found(CASE, None).is_same(found(other, None))  # the same edge
    assert not found(CASE, "f", "g").is_same(found(other, "g"))
    assert not found(CASE, None).is_same(found(CASE.replace(window_left=None), None))
    assert not found(CASE, "f").is_same(found(CASE, "f", kind="poisoned"))
