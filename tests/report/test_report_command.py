"""`attn-harness report`: the page, Markdown, side by side, merging."""

import base64
import json
import re
import zlib
from pathlib import Path
from typing import Any

import pytest
from synthetic import a_case, a_finding, a_record, many_records, write_records

from harness.gate.baseline import baseline_from_records, write_baseline
from harness.record import read_records
from harness.record_files import load_records, read_plan, write_plan
from harness.report.html import render_report
from harness.report.model import ReportInput
from harness.running.options import Job
from harness.verdict import Stability, Verdict


def data_of(page: Path) -> dict[str, Any]:
    """The model that a page carries."""
    packed = re.search(r'id="data">([^<]+)<', page.read_text())
    assert packed is not None
    body: dict[str, Any] = json.loads(zlib.decompress(base64.b64decode(packed[1])))
    return body


@pytest.fixture
def some(tmp_path: Path) -> Path:
    """Two findings among five records."""
    records = [a_record(n) for n in range(3)] + [a_finding(3), a_record(4, Verdict.UNSUPPORTED, reason="no sinks")]
    return write_records(tmp_path / "some.jsonl", [*records, a_record(5, Verdict.CRASH, reason="it died")])


def test_the_page_holds_every_record_and_each_findings_detail(some: Path, tmp_path: Path, run_report) -> None:
    page = tmp_path / "r.html"
    answer = run_report(some, "-o", page, "--reports", tmp_path, "--json")
    assert answer.code == 0
    assert json.loads(answer.out)["verdicts"] == {"PASS": 3, "WRONG": 1, "UNSUPPORTED": 1, "CRASH": 1}
    data = data_of(page)
    assert sorted(data["cases"]["id"]) == sorted(a_case(n).id for n in range(6))
    wrong = data["verdicts"].index("WRONG")
    (number,) = [n for n, verdict in enumerate(data["records"]["verdict"]) if verdict == wrong]
    detail = data["details"][str(number)]
    assert detail["explanation"] == list(a_finding(3).explanation)
    assert detail["replay"] == (
        f"attn-harness replay {tmp_path}/failures/{a_case(3).id}.json --adapter flashinfer-swa-merge"
    )
    assert type(a_case(3)).from_json(detail["case"]) == a_case(3)
    assert len(data["details"]) == 2


def test_the_page_needs_nothing_from_anywhere(some: Path, tmp_path: Path, run_report) -> None:
    page = tmp_path / "r.html"
    run_report(some, "-o", page, "--reports", tmp_path)
    text = page.read_text().replace('"http://www.w3.org/2000/svg"', "")
    assert not re.search(r"https?://|src=\"(?!data:)|<link[^>]+href=\"(?!data:)|@import|url\(", text)


def test_texts_of_records_cannot_become_markup(tmp_path: Path, run_report) -> None:
    evil = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
    record = a_finding(0, reason=evil, explanation=(evil,), adapter=evil, versions={"torch": evil}, device=evil)
    page = tmp_path / "r.html"
    path = write_records(tmp_path / "evil.jsonl", [record])
    assert run_report(path, "-o", page, "--reports", tmp_path, "--title", evil).code == 0
    assert "<script>alert" not in page.read_text()
    assert "<img src=x" not in page.read_text()
    other = write_records(tmp_path / "good.jsonl", [record.replace(verdict=Verdict.PASS)])
    run_report("--compare", other, path, "-o", page)
    assert "<script>alert" not in page.read_text()


def test_20000_records_stay_under_5_megabytes(tmp_path: Path) -> None:
    page = tmp_path / "r.html"
    page.write_text(render_report(ReportInput(many_records(20_000), "many")))
    assert page.stat().st_size < 5_000_000
    data = data_of(page)
    assert len(data["records"]["case"]) == 20_000
    assert data["findings"] > 100


def test_the_largest_numbers_are_still_json(tmp_path: Path, run_report) -> None:
    """JSON has no infinity, and the largest float rounds up to it."""
    path = write_records(tmp_path / "r.jsonl", [a_finding(0, error=1.797e308, ratio=1.797e308, residual=1.797e308)])
    assert run_report(path, "-o", tmp_path / "r.html", "--reports", tmp_path).code == 0
    packed = re.search(r'id="data">([^<]+)<', (tmp_path / "r.html").read_text())
    assert packed is not None
    text = zlib.decompress(base64.b64decode(packed[1])).decode()
    assert "1.797e+308" in text
    json.loads(text, parse_constant=lambda name: pytest.fail(f"the page holds {name}, which is no JSON"))


def test_details_past_the_limit_are_left_out_and_counted(
    tmp_path: Path, run_report, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.report.model.MAX_DETAILS", 3)
    path = write_records(tmp_path / "r.jsonl", [a_finding(n) for n in range(5)])
    run_report(path, "-o", tmp_path / "r.html", "--reports", tmp_path)
    data = data_of(tmp_path / "r.html")
    assert (len(data["details"]), data["findings"]) == (3, 5)


def test_markdown_says_the_same(some: Path, tmp_path: Path, run_report) -> None:
    text = run_report(some, "--format", "md", "--reports", tmp_path).out
    assert "6 records: 3 PASS, 1 WRONG, 1 CRASH, 1 UNSUPPORTED" in text
    assert "swa-merge-window-missing (window)" in text
    assert f"attn-harness replay {tmp_path}/failures/{a_case(3).id}.json --adapter flashinfer-swa-merge" in text
    assert "| extend · window | **1 WRONG**, **1 CRASH** of 5 (40) |" in text
    assert "flashinfer-python 0.6.18" in text


def test_markdown_tells_findings_of_one_kind_once(tmp_path: Path, run_report) -> None:
    named = ("window-one-too-wide: left bound (class window)",)
    found = [a_finding(n, explanation=named, stability=Stability.STATE_DEPENDENT) for n in range(9)]
    path = write_records(tmp_path / "r.jsonl", found)
    text = run_report(path, "--format", "md", "--reports", tmp_path).out
    assert "- run three times: 9 state-dependent (right alone" in text
    assert text.count("### WRONG: flashinfer-swa-merge, 9 cases, window-one-too-wide; first: ") == 1
    assert (text.count("### "), text.count("attn-harness replay")) == (1, 1)
    assert "also: " in text
    assert "and 2 more" in text


def test_the_difference_from_a_baseline(some: Path, tmp_path: Path, run_report) -> None:
    write_baseline(tmp_path / "baselines" / "b.jsonl", baseline_from_records(a_record(n) for n in range(7)))
    page = tmp_path / "r.html"
    assert run_report(some, "-o", page, "--reports", tmp_path, "--baseline", "b").code == 0
    kinds = sorted(change[0] for change in data_of(page)["baseline"]["changes"])
    assert kinds == ["lost coverage", "lost coverage", "new failure", "new failure"]
    text = run_report(some, "--format", "md", "--reports", tmp_path, "--baseline", "b").out
    assert "## Against baseline b" in text
    assert "no longer run; the baseline has PASS" in text


def test_what_a_killed_run_lacks_is_said(some: Path, tmp_path: Path, run_report) -> None:
    write_plan(some, [Job(a_case(n), "flashinfer-swa-merge") for n in range(9)])
    run_report(some, "-o", tmp_path / "r.html", "--reports", tmp_path)
    assert "3 planned cases have no record" in (tmp_path / "r.html").read_text()


def test_pictures_of_findings_are_put_into_the_page(some: Path, tmp_path: Path, run_report) -> None:
    pixel = base64.b64decode(
        "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+A8AAQUBAScY42YAAAAASUVORK5CYII="
    )
    by_name, by_case = tmp_path / "f" / "one", tmp_path / "f" / "two"
    by_name.mkdir(parents=True)
    by_case.mkdir()
    (by_name / f"xray-{a_case(3).id}.png").write_bytes(pixel)
    (by_case / "xray.png").write_bytes(pixel)
    (by_case / "case.json").write_text(json.dumps(a_case(5).to_json()))
    run_report(some, "-o", tmp_path / "r.html", "--reports", tmp_path, "--findings", tmp_path / "f")
    data = data_of(tmp_path / "r.html")
    assert [len(detail["pictures"]) for detail in data["details"].values()] == [1, 1]


# -- side by side ------------------------------------------------------------------------------
def test_two_releases_side_by_side(tmp_path: Path, run_report) -> None:
    a = write_records(tmp_path / "old.jsonl", [a_record(n) for n in range(4)])
    newer = {"torch": "2.11.0+cu130", "flashinfer-python": "0.7.1"}
    b_records = [a_finding(0), a_record(1), a_record(2), a_record(9)]
    b = write_records(tmp_path / "new.jsonl", [r.replace(versions=newer) for r in b_records])
    text = run_report("--compare", a, b, "--format", "md").out
    assert "3 cases in both, 1 with another verdict; 1 only in A, 1 only in B" in text
    assert "| flashinfer-python | 0.6.18 | **0.7.1** |" in text
    assert f"| PASS | WRONG | flashinfer-swa-merge | {a_case(0).name} `{a_case(0).id}` |" in text
    page = tmp_path / "d.html"
    assert run_report("--compare", a, b, "-o", page).code == 0
    assert a_case(0).id in page.read_text()
    body = json.loads(run_report("--compare", a, b, "-o", page, "--json").out)
    assert [(c["a"], c["b"]) for c in body["changed"]] == [("PASS", "WRONG")]


def test_two_kernels_meet_by_case(tmp_path: Path, run_report) -> None:
    a = write_records(tmp_path / "a.jsonl", [a_record(n, adapter="flash-attn-3") for n in range(3)])
    b = write_records(tmp_path / "b.jsonl", [a_record(n, adapter="flash-attn-4") for n in range(3)])
    assert "3 cases in both, 0 with another verdict" in run_report("--compare", a, b, "--format", "md").out


# -- merging -----------------------------------------------------------------------------------
def test_merging_keeps_every_record_once(tmp_path: Path, run_report) -> None:
    records = many_records(90)
    files = [write_records(tmp_path / f"s{n}.jsonl", records[n::3]) for n in range(3)]
    for n, file in enumerate(files):
        write_plan(file, [Job(r.case, r.adapter) for r in records[n::3]], shard=(n + 1, 3))
    merged = tmp_path / "all.jsonl"
    assert run_report("--merge", merged, *files, files[0]).code == 0
    assert sorted(map(str, read_records(merged))) == sorted(map(str, records))
    plan = read_plan(merged)
    assert plan is not None
    assert set(plan.planned) == {record.key for record in records}


def test_what_a_killed_shard_lacks_is_still_known_after_merging(tmp_path: Path, run_report) -> None:
    file = write_records(tmp_path / "s.jsonl", [a_record(0)])
    write_plan(file, [Job(a_case(n), "flashinfer-swa-merge") for n in range(2)])
    run_report("--merge", tmp_path / "all.jsonl", file)
    loaded = load_records([tmp_path / "all.jsonl"])
    assert len(set(loaded.planned) - {r.key for r in loaded.records}) == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "name the records"),
        (("some.jsonl", "--format", "pdf"), "use html or md"),
        (("nowhere.jsonl",), "there is no file of records"),
        (("empty.jsonl",), "there is no record in"),
        (("garbage.jsonl",), "garbage.jsonl line 1 is no JSON"),
        (("some.jsonl", "--baseline", "none"), "there is no baseline"),
        (("some.jsonl", "--findings", "none"), "no folder of findings"),
        (("some.jsonl", "--merge", "some.jsonl"), "one of the files"),
        (("some.jsonl", "--compare", "some.jsonl", "some.jsonl"), "leave out other records"),
        (("--compare", "some.jsonl", "other.jsonl"), "no case and adapter in common"),
        (("some.jsonl", "-o", "nowhere.jsonl/r.html"), "cannot write"),
        (("some.jsonl", "--format", "md", "--json"), "name a file with -o"),
    ],
)
def test_bad_use_is_one_sentence_and_exit_code_2(
    some: Path, run_report, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], said: str
) -> None:
    monkeypatch.chdir(some.parent)
    Path("garbage.jsonl").write_text("what is this\n")
    Path("empty.jsonl").write_text("")
    if "-o" in arguments:
        Path("nowhere.jsonl").write_text("a file, not a folder")
    write_records(Path("other.jsonl"), [a_record(7), a_record(7, adapter="flash-attn-4")])
    answer = run_report(*arguments)
    assert answer.code == 2
    assert said in answer.err
    assert "\n" not in answer.err.strip()
