"""Each relation finds what it is there for, and nothing else does; right kernels satisfy them all."""

import dataclasses
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))

import kernels

from cases.batch import build_batch
from cases.ragged import kv_rows
from cases.recipes import make_data
from cases.schema import AttentionCase, Execution, PageOrder, Poison
from cases.suites import load_suite
from harness.adapters.capabilities import Capabilities
from harness.adapters.registry import load_adapter
from harness.figures import RELATION
from harness.metamorphic.checking import RELATIONS
from harness.metamorphic.relation import Subject
from harness.record import Record
from harness.running.examine import examine
from harness.running.options import RunOptions
from harness.verdict import Verdict

CPU = torch.device("cpu")
WINDOW = AttentionCase(requests=((37, 9), (0, 21), (50, 1)), window_left=11, page_order=PageOrder.CONTIGUOUS)
SORTED = WINDOW.replace(requests=((50, 1), (37, 9), (0, 21)))
GROWING = WINDOW.replace(requests=SORTED.requests[::-1])
NO_PREFIX = WINDOW.replace(requests=((0, 33), (0, 18)))


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def judged(case, adapter, evidence="metamorphic", **options) -> Record:
    return examine(case, adapter, RunOptions(evidence=evidence, **options), CPU)


def relations(record, passed) -> list[str]:
    return [
        e.kind.removeprefix(RELATION) for e in record.evidence if e.kind.startswith(RELATION) and e.passed is passed
    ]


def test_a_right_kernel_satisfies_every_relation():
    record = judged(WINDOW, kernels.Kernel())
    assert record.verdict is Verdict.PASS, record.reason
    assert relations(record, True) == [relation.name for relation in RELATIONS]
    assert all(e.measure["max_abs_diff"] == 0 for e in record.evidence if e.measure.get("bitwise"))


PLANTED = [
    (kernels.EveryFifthRunDiffers, WINDOW, ["determinism"], Verdict.WRONG),
    (kernels.LooksAtPageNumbers, WINDOW, ["page-permutation"], Verdict.WRONG),
    (kernels.TakesPagesForContiguous, WINDOW, ["page-permutation"], Verdict.WRONG),
    (kernels.LooksAtAStaleKey, WINDOW, ["re-poisoning"], Verdict.POISONED),
    (kernels.RoundsByNeighbour, GROWING, ["batch-permutation", "batch-composition"], Verdict.WRONG),
    (kernels.LongestFirst, SORTED, ["batch-permutation"], Verdict.WRONG),
    (kernels.NoWindowForOne, WINDOW, ["batch-composition"], Verdict.WRONG),
    (kernels.LosesLastPrefixKey, NO_PREFIX, ["chunked-extend"], Verdict.WRONG),
]


@pytest.mark.parametrize(("kernel", "case", "broken", "verdict"), PLANTED, ids=lambda value: getattr(value, "name", ""))
def test_a_planted_fault_is_seen_by_its_relations_alone(kernel, case, broken, verdict):
    assert judged(case, kernel(), "certificate").verdict is Verdict.PASS, "other evidence sees it too"
    record = judged(case, kernel())
    assert relations(record, False) == broken
    assert record.verdict is verdict
    evidence = next(e for e in record.evidence if e.kind == RELATION + broken[0])
    assert f"with {evidence.measure['with']} the output differs" in record.reason
    assert {"request", "position", "row", "head"} <= evidence.measure["worst"].keys()
    assert "query position" in evidence.message


def test_every_relation_has_a_planted_fault():
    assert {name for _, _, broken, _ in PLANTED for name in broken} == {relation.name for relation in RELATIONS}


def test_the_worst_place_is_told_in_rows_of_the_case():
    """Only request 1 has prefix keys to lose, and is row 0 of the run where it is alone."""

    class RightInTheBatch(kernels.LosesLastPrefixKey):
        def hidden(self, batch, i, query, key):
            case = batch.case
            return super().hidden(batch, i, query, key) if case.num_requests == 1 else key > query

    case = AttentionCase(requests=((0, 9), (37, 9)))
    record = judged(case, RightInTheBatch())
    evidence = next(e for e in record.evidence if e.passed is False)
    assert evidence.kind == "metamorphic/batch-composition"
    assert evidence.measure["with"] == "request 1 alone"
    assert evidence.measure["worst"]["request"] == 1
    assert evidence.measure["worst"]["row"] >= 9
    assert evidence.measure["worst"]["position"] == evidence.measure["worst"]["row"] - 9 + 37


def test_a_flat_tolerance_does_not_excuse_a_broken_relation():
    assert judged(WINDOW, kernels.LooksAtPageNumbers(), atol=10.0).verdict is Verdict.WRONG


def test_bits_are_compared_only_where_the_adapter_declares_them():
    class Undeclared(kernels.RoundsByNeighbour):
        batch_invariant = False

    class ByPage(kernels.LooksAtPageNumbers):
        page_invariant = False

    assert judged(GROWING, kernels.RoundsByNeighbour()).verdict is Verdict.WRONG
    assert judged(GROWING, Undeclared()).verdict is Verdict.PASS
    record = judged(WINDOW, ByPage())
    assert record.verdict is Verdict.PASS
    moved = next(e for e in record.evidence if e.kind == "metamorphic/page-permutation")
    assert not moved.measure["bitwise"]
    assert 0 < moved.measure["ratio"] < 1

    class Undetermined(kernels.EveryFifthRunDiffers):
        deterministic = False

    record = judged(WINDOW, Undetermined())
    assert record.verdict is Verdict.PASS, record.reason
    assert {"determinism", "re-poisoning"} <= set(relations(record, None))


def test_a_difference_of_the_lse_alone_is_seen():
    class LseByRun(kernels.Kernel):
        def run(self, plan, batch):
            made = super().run(plan, batch)
            return dataclasses.replace(made, lse=made.lse + 2.0**-18 * (self.runs % 2))

    record = judged(WINDOW, LseByRun())
    assert relations(record, False) == ["determinism"]
    assert "the LSE differs" in record.reason


def test_outputs_in_one_buffer_are_told_apart():
    class Wrong(kernels.KeepsOutputs, kernels.EveryFifthRunDiffers):
        pass

    assert judged(WINDOW, kernels.KeepsOutputs()).verdict is Verdict.PASS
    assert relations(judged(WINDOW, Wrong()), False) == ["determinism"]


def test_repeats_are_as_many_as_asked_for():
    kernel = kernels.Kernel()
    record = judged(WINDOW, kernel, repeats=7)
    assert next(e for e in record.evidence if e.kind == "metamorphic/determinism").measure["runs"] == 6
    assert "determinism" in relations(judged(WINDOW, kernels.EveryFifthRunDiffers(), repeats=2), True)


def test_what_does_not_apply_says_why():
    one = judged(AttentionCase(requests=((9, 1),)), kernels.Kernel(), repeats=1)
    reasons = {e.kind.removeprefix(RELATION): e.message for e in one.evidence if e.passed is None}
    assert reasons == {
        "determinism": "one run has nothing to be compared with",
        "batch-permutation": "the batch has a single request",
        "batch-composition": "the batch has a single request",
        "chunked-extend": "no request has two new rows to part",
    }
    graph = AttentionCase(
        requests=((20, 4), (3, 2)), execution=Execution(capture_requests=((64, 4), (64, 4))), num_kv_heads=8
    )
    record = judged(graph, load_adapter("flash-attn-4@emulated"))
    assert record.verdict is Verdict.PASS, record.reason
    assert relations(record, None) == ["batch-composition"]


def test_what_an_adapter_raises_on_another_run_names_the_run():
    class RefusesOne(kernels.Kernel):
        def run(self, plan, batch):
            if batch.case.num_requests == 1:
                raise RuntimeError("no such kernel")
            return super().run(plan, batch)

    record = judged(WINDOW, RefusesOne())
    assert record.verdict is Verdict.CRASH
    assert record.reason.startswith("run with request 0 alone raised RuntimeError: no such kernel")


def test_a_rule_that_raises_on_another_case_is_a_crash_that_names_the_run():
    class RuleRaisesOnOneRequest(kernels.Kernel):
        capabilities = Capabilities(softcap=False, rules=(lambda case: None if 1 / (len(case.requests) - 1) else "",))

    record = judged(WINDOW, RuleRaisesOnOneRequest())
    assert record.verdict is Verdict.CRASH
    assert record.reason.startswith("capabilities with request 0 alone raised ZeroDivisionError"), record.reason


CASES = [
    WINDOW,
    WINDOW.replace(page_order=PageOrder.REVERSED, kv_layout="HND", poison="nan"),
    WINDOW.replace(page_order=PageOrder.FAR_END, pool_pages=40, dtype="float16", kv_dtype="float8_e4m3fn"),
    WINDOW.replace(page_order=PageOrder.INTERLEAVED, requests=((5, 2), (0, 0), (8, 0), (3, 40), (1, 1), (0, 7))),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
@pytest.mark.parametrize("relation", RELATIONS, ids=lambda relation: relation.name)
def test_every_token_keeps_its_values(relation, case):
    """q, k and v of a row or key are those of the original, wherever its page and its request went."""
    data = make_data(case, CPU)
    subject = Subject(case, data, case.poison, Poison.NAN, True, True, True, 3)
    assert relation.not_run(subject) is None
    keys = {}
    for at, (request, position) in enumerate(zip(*kv_rows(case, CPU), strict=True)):
        keys[int(request), int(position)] = at
    for variant in relation.variants(subject):
        batch = build_batch(variant.case, data=variant.data, poison=variant.level)
        if variant.change is not None:
            variant.change(batch)
        batch.write_new_rows()
        assert torch.equal(batch.q, data.q[variant.rows])
        rows = kv_rows(variant.case, CPU)
        first_row = {int(r): i for i, r in reversed(list(enumerate(_request_of_rows(variant.case))))}
        was = {new: int(_request_of_rows(case)[int(variant.rows[row])]) for new, row in first_row.items()}
        slots = batch.paging.slots(rows)
        for pool, values in ((batch.k_pool, data.k), (batch.v_pool, data.v)):
            by_token = pool if case.kv_layout == "NHD" else pool.transpose(1, 2)
            stored = by_token[slots // case.page_size, slots % case.page_size]
            for new, old in was.items():
                mine = rows.request == new
                there = torch.tensor([keys[old, int(p)] for p in rows.position[mine]])
                assert torch.equal(stored[mine].float(), values[there].float())


def _request_of_rows(case):
    return [i for i, request in enumerate(case.requests) for _ in range(request.extend_len)]


ADAPTERS = ("flashinfer-swa-merge@emulated", "flashinfer-paged-fa2@emulated", "flash-attn-4@emulated", "torch-sdpa")


def alarms(adapter_name, cases) -> tuple[int, list[str]]:
    """Relations that held, and what did not."""
    adapter, held, broken = load_adapter(adapter_name), 0, []
    for case in cases:
        record = judged(case, adapter, repeats=2)
        held += len(relations(record, True))
        if record.verdict not in (Verdict.PASS, Verdict.UNSUPPORTED):
            broken.append(f"{case.name} ({case.id}): {record.verdict} {record.reason}")
    return held, broken


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_no_false_alarm_on_every_sixth_smoke_case(adapter):
    held, broken = alarms(adapter, load_suite("smoke")[::6])
    assert not broken
    assert held > 20


@pytest.mark.nightly
@pytest.mark.parametrize("adapter", ADAPTERS)
def test_no_false_alarm_on_smoke(adapter):
    held, broken = alarms(adapter, load_suite("smoke"))
    assert not broken
    assert held > 200
