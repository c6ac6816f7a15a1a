"""The corpus of public triggers, and reading cases from files that anybody may have written."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from cases import AttentionCase, CaseError
from cases.corpus_io import CORPUS_DIR, CorpusEntry, load_case_file, load_corpus, read_case_json
from cases.suites import load_suite
from harness.faults.protocol import FaultClass

CORPUS = load_corpus()
CASE = AttentionCase(requests=((3, 2),), window_left=4)  # type: ignore[arg-type]


def test_the_corpus_covers_every_class_of_fault() -> None:
    assert len(CORPUS) >= 100
    assert {entry.provenance.fault_class for entry in CORPUS} == set(FaultClass)
    assert load_suite("corpus") == tuple(entry.case for entry in CORPUS)
    assert len({entry.case.id for entry in CORPUS}) == len(CORPUS)


@pytest.mark.parametrize("entry", CORPUS, ids=[entry.name for entry in CORPUS])
def test_an_entry_is_written_out_in_full_and_says_where_it_comes_from(entry: CorpusEntry) -> None:
    body = json.loads((CORPUS_DIR / f"{entry.name}.json").read_text())
    assert body["case"] == entry.case.to_json()  # no field left to a default that may change
    assert set(body) == {"case", "provenance"}
    assert set(body["provenance"]) <= {"project", "reference", "class", "symptom", "note"}
    assert entry.provenance.project.split()[0] in entry.provenance.reference
    assert "\n" not in entry.provenance.symptom


def test_the_corpus_stays_cheap_on_a_cpu() -> None:
    for entry in CORPUS:
        built = entry.case
        assert sum(r.extend_len * r.kv_len for r in built.requests) * built.num_qo_heads <= 1.2e7, entry.name
        assert built.total_kv * built.num_kv_heads * (built.head_dim_qk + built.head_dim_vo) <= 4.2e6, entry.name


def _write(path: Path, body: object) -> Path:
    path.write_text(body if isinstance(body, str) else json.dumps(body))
    return path


def test_a_bare_case_a_corpus_entry_and_a_finding_are_all_read(tmp_path: Path) -> None:
    bare = _write(tmp_path / "bare.json", CASE.to_json())
    wrapped = _write(tmp_path / "wrapped.json", {"case": CASE.to_json(), "adapter": "x", "versions": {"torch": "2"}})
    assert load_case_file(bare) == load_case_file(str(wrapped)) == CASE
    assert read_case_json(bare)[1] == {}
    assert read_case_json(wrapped)[1] == {"adapter": "x", "versions": {"torch": "2"}}


BROKEN = [
    ("{", "is no valid JSON (line 1: Expecting property name enclosed in double quotes)."),
    ("", "is no valid JSON (line 1: Expecting value)."),
    ("[" * 100_000, "is no valid JSON (nested too deep)."),
    ('{"schema_version": 1, "requests": [[1, 1]], "requests": [[2, 2]]}', "has the key 'requests' twice; keep one."),
    ("[1]", "a case is a JSON object, not list; see `attn-harness list schema`."),
    ({"case": 3}, "a case is a JSON object, not int; see `attn-harness list schema`."),
    ({"case": {"schema_version": 9}}, "schema_version is 9, this release reads up to 1; update attn-harness."),
    (
        {"schema_version": 1, "requests": [[-3, 2]]},
        "requests[0] is [-3, 2]; lengths must not be negative.",
    ),
]


@pytest.mark.parametrize(("body", "sentence"), BROKEN, ids=[sentence[:30] for _, sentence in BROKEN])
def test_a_broken_file_is_one_sentence_with_its_name(tmp_path: Path, body: object, sentence: str) -> None:
    path = _write(tmp_path / "broken.json", body)
    with pytest.raises(CaseError) as refusal:
        load_case_file(path)
    assert str(refusal.value) == f"{path}: {sentence}"


def test_a_file_that_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(CaseError) as missing:
        load_case_file(tmp_path / "gone.json")
    assert str(missing.value) == f"{tmp_path / 'gone.json'}: there is no such file."
    with pytest.raises(CaseError, match=r"cannot be read \(.*Is a directory"):
        load_case_file(tmp_path)
    binary = tmp_path / "binary.json"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(CaseError, match=r"binary.json: cannot be read"):
        load_case_file(binary)


PROVENANCE = {"project": "p", "reference": "p #1", "class": "window", "symptom": "wrong"}


@pytest.mark.parametrize(
    ("provenance", "sentence"),
    [
        (None, "provenance is no JSON object; give project, reference, class and symptom."),
        ({**PROVENANCE, "class": ""}, "provenance has no class; add it as text."),
        ({**PROVENANCE, "reference": 3}, "provenance has no reference; add it as text."),
    ],
)
def test_a_corpus_file_without_provenance_is_refused(tmp_path: Path, provenance: object, sentence: str) -> None:
    path = _write(tmp_path / "entry.json", {"case": CASE.to_json(), "provenance": provenance})
    with pytest.raises(CaseError) as refusal:
        load_corpus(tmp_path)
    assert str(refusal.value) == f"{path}: {sentence}"


def test_a_corpus_of_ones_own_is_sorted_by_name(tmp_path: Path) -> None:
    for name in ("b", "a"):
        _write(tmp_path / f"{name}.json", {"case": CASE.to_json(), "provenance": {**PROVENANCE, "note": "n"}})
    entries = load_corpus(tmp_path)
    assert [entry.name for entry in entries] == ["a", "b"]
    assert entries[0].provenance.note == "n"
    assert entries[0].provenance.fault_class == "window"


@pytest.mark.parametrize("constant", ["NaN", "Infinity", "-Infinity"])
def test_constants_that_are_no_json_are_refused(tmp_path: Path, constant: str) -> None:
    path = tmp_path / "case.json"
    path.write_text(f'{{"schema_version": 1, "requests": [[3, 2]], "poison": {constant}}}')
    with pytest.raises(CaseError, match=f"case.json: holds the bare constant {constant}"):
        load_case_file(path)


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "case.json")
    with pytest.raises(CaseError, match="no regular file"):
        load_case_file(tmp_path / "case.json")
