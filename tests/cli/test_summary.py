"""What a run says at its end: failures of one kind once, reasons with their counts."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from cases import AttentionCase, Request
from harness.cli.summary import print_summary
from harness.grouping import faults_named, group_findings
from harness.pytest_plugin import failure_text
from harness.record import FIRST_SEEN, Record
from harness.verdict import Evidence, Stability, Verdict


def record(seed: int, verdict: Verdict = Verdict.WRONG, reason: str = "", adapter: str = "a", **more: object) -> Record:
    return Record(AttentionCase(requests=(Request(9, 3),), seed=seed), adapter, verdict, reason, **more)  # type: ignore[arg-type]


def named(seed: int, fault: str, *same: str) -> Record:
    lines = (f"{fault}: what it does (class window; reproduced, residual 0.01 of the bound)",)
    return record(seed, explanation=lines + ((f"the same on this case: {', '.join(same)}",) if same else ()))


def wrong(seed: int, *kinds: str) -> Record:
    return record(seed, evidence=tuple(Evidence(kind, False, message="x") for kind in kinds))


def seeds(records: list[Record]) -> list[tuple[str, list[int]]]:
    return [(group.what, [r.case.seed for r in group.records]) for group in group_findings(records)]


def text(records: list[Record], verbose: bool = False) -> str:
    out = io.StringIO()
    console = Console(file=out, width=200)
    print_summary(console, records, {r.case.id: f"failures/{r.case.seed}.json" for r in records}, verbose=verbose)
    return out.getvalue()


def test_one_fault_takes_the_records_that_a_tie_told_by_another_name() -> None:
    records = [named(0, "ignored", "wide"), named(1, "wide"), named(2, "wide", "ignored"), named(3, "cap")]
    assert seeds(records) == [("wide", [0, 1, 2]), ("cap", [3])]


def test_the_case_shown_is_one_that_names_the_fault_itself() -> None:
    (group,) = group_findings([named(0, "ignored", "wide"), named(1, "wide"), named(2, "wide")])
    assert group.first.case.seed == 1


def test_records_of_two_adapters_or_verdicts_are_apart() -> None:
    records = [record(0, reason="x"), record(1, reason="x", adapter="b"), record(2, Verdict.POISONED, "x")]
    assert [group.records for group in group_findings(records)] == [(r,) for r in records]


def test_crashes_are_told_apart_by_words_and_line_not_by_numbers() -> None:
    words = "run raised RuntimeError: bad index {} (at kernel.py:{})"
    records = [record(n, Verdict.CRASH, words.format(n, line)) for n, line in enumerate((7, 7, 9, 7))]
    assert [s for _, s in seeds(records)] == [[0, 1, 3], [2]]


def test_a_generated_case_that_fails_is_told_whole() -> None:
    failed = record(3, Verdict.WRONG, "off")
    lines = failure_text(failed.replace(suite=None)).splitlines()
    (body,) = (line.removeprefix("case: ") for line in lines if line.startswith("case: "))
    assert AttentionCase.from_json(json.loads(body)) == failed.case
    assert not any("None" in line for line in lines)
    assert "--suite smoke -k" in failure_text(failed.replace(suite="smoke"))


def test_what_comes_and_goes_is_said_before_what_may_explain_it() -> None:
    said = text([named(n, "wide").replace(stability=Stability.STATE_DEPENDENT) for n in range(2)])
    assert "run three times: 2 state-dependent (right alone in a fresh process, wrong after other cases)" in said
    assert said.index("state-dependent") < said.index("what it does")


def test_a_lost_device_is_one_group_whichever_call_noticed() -> None:
    lost = "the device was lost: CUDA error: device-side assert triggered"
    calls = (
        "run raised RuntimeError: cublasSgemm failed (at a.py:7)",
        "run raised AcceleratorError: assert (at a.py:9)",
    )
    records = [record(seed, Verdict.CRASH, f"{lost}{FIRST_SEEN}{call}") for seed, call in enumerate(calls)]
    assert seeds(records) == [(lost, [0, 1])]


def test_what_nothing_names_is_grouped_by_what_fails() -> None:
    records = [
        wrong(0, "bound", "certificate/flat"),
        wrong(1, "lse"),
        wrong(2, "bound", "certificate/step", "certificate/flat"),
    ]
    assert [s for _, s in seeds(records)] == [[0, 2], [1]]
    assert "2 cases, fails bound, certificate; explanation not tried" in text(records)
    searched = [r.replace(explanation=("no named fault explains this: x (window)",)) for r in records]
    assert seeds([*searched, named(3, "wide")]) == [
        ("fails bound, certificate; no named fault explains it", [0, 2]),
        ("fails lse; no named fault explains it", [1]),
        ("wide", [3]),
    ]


def test_what_was_not_tried_is_more_beside_what_was_explained() -> None:
    records = [wrong(0, "bound"), named(1, "wide"), named(2, "wide"), wrong(3, "bound"), wrong(4, "lse")]
    assert seeds(records) == [("wide", [1, 2]), ("explanation not tried", [0, 3, 4])]
    said = text(records)
    assert "WRONG a  3 more cases, explanation not tried; first: extend-9+3" in said
    assert "fail: 2 bound; 1 lse" in said
    assert "to try: attn-harness explain failures/0.json --adapter a\n" in said
    assert said.count("attn-harness explain") == 1
    assert "WRONG a  1 more case, explanation not tried; extend-9+3" in text(records[:3])
    assert "more" not in text([*records[1:3], record(5, Verdict.CRASH, "run raised X"), record(6, adapter="b")])


def test_every_finding_is_in_one_group() -> None:
    records = [named(n, f"fault{n % 3}", f"fault{n % 2}") for n in range(9)] + [wrong(n, "lse") for n in range(9, 12)]
    grouped = [r for group in group_findings(records) for r in group.records]
    assert sorted(r.case.seed for r in grouped) == list(range(12))


@pytest.mark.parametrize(
    ("lines", "faults"),
    [
        ((), ()),
        (("no named fault explains this: x (window)",), ()),
        (("window-wide: what (class window; reproduced)",), ("window-wide",)),
        (("a+b: what (class window; x)", "the same on this case: c, d"), ("a+b", "c", "d")),
        (("a: what (fails with the same words)", "run raised X", "the same on this case: c ..."), ("a", "c")),
    ],
)
def test_faults_that_an_explanation_names(lines: tuple[str, ...], faults: tuple[str, ...]) -> None:
    assert faults_named(record(0, explanation=lines)) == faults


def test_a_group_is_told_once_with_its_count_and_first_case() -> None:
    records = [record(n, Verdict.CRASH, "error 1", stability=Stability.DETERMINISTIC) for n in range(11)]
    records.append(named(11, "wide").replace(stability=Stability.FLAKY))
    said = text([*records, named(12, "wide")])
    assert "CRASH a  11 cases, error #; first: extend-9+3" in said
    assert "WRONG a  2 cases, wide; first: extend-9+3" in said
    assert said.count("attn-harness replay") == 2
    assert "run three times: 11 deterministic" in said
    assert f"  also: {records[1].case.id} " in said
    assert "and 4 more" in said
    everything = text(records, verbose=True)
    assert all(r.case.id in everything for r in records[1:11])


def test_reasons_are_counted_over_adapters_and_named_with_verbose() -> None:
    records = [record(n, Verdict.UNSUPPORTED, f"no {n % 8}", adapter=f"a{n % 3}") for n in range(40)]
    said = text(records)
    assert "not supported, as declared: 40 of 40" in said
    assert "      5  no 0" in said
    assert "     10  for 2 other reasons" in said
    assert records[0].case.id not in said
    everything = text(records, verbose=True)
    assert all(f"{r.adapter} {r.case.id}" in everything for r in records)
