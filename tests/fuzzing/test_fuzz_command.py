"""`attn-harness fuzz` and `promote`: exit codes, JSON, one sentence for bad use."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from harness.cli.fuzz import fuzz
from harness.cli.promote import promote
from harness.errors import UsageError
from harness.fuzzing.progress import FuzzProgress

SWA = "flashinfer-swa-merge@emulated"
app = typer.Typer()
app.command("fuzz")(fuzz)
app.command("promote")(promote)
runner = CliRunner()


def test_a_session_with_a_planted_fault(tmp_path: Path) -> None:
    arguments = ["--examples", "6", "--seed", "2", "--coverage", "--reports", str(tmp_path)]
    result = runner.invoke(app, ["fuzz", "-a", SWA, "--fault", "window-one-too-wide", "--json", *arguments])
    assert result.exit_code == 1, result.output
    told = json.loads(result.stdout)
    assert (told["seed"], told["cases"], told["interrupted"]) == (2, 6, False)
    finding = told["findings"][0]
    assert (finding["fault"], finding["class"], finding["verdict"]) == ("window-one-too-wide", "window", "WRONG")
    assert "shows with: kv > window" in result.stderr
    assert re.search(r"\d+ of \d+ edges, \d+ pairs", result.stderr)
    assert "seed 2, profile quick" in result.stderr

    corpus = tmp_path / "corpus"
    result = runner.invoke(app, ["promote", finding["folder"], "--corpus", str(corpus), "--symptom", "one key more"])
    assert result.exit_code == 0, result.output
    body = json.loads(Path(result.stdout.strip()).read_text())
    assert body["provenance"]["symptom"] == "one key more"
    assert "window-one-too-wide planted" in body["provenance"]["note"]
    assert f"no suite reads this folder: look at the file, commit it, and run it with --cases {corpus}" in result.stderr


def test_a_promoted_case_is_in_suite_corpus_and_to_be_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    own = tmp_path / "checkout" / "cases" / "corpus"
    monkeypatch.setattr("harness.cli.promote.CORPUS_DIR", own)
    monkeypatch.setattr("harness.fuzzing.findings.read_finding", lambda path: path)
    monkeypatch.setattr("harness.fuzzing.promoting.promote_finding", lambda finding, corpus, **_: corpus / "new.json")
    promote(tmp_path, corpus=own, as_json=False)
    said = capsys.readouterr()
    assert said.out == f"{own / 'new.json'}\n"
    assert f"suite `corpus` now, for everyone once it is committed: git -C {tmp_path}/checkout add" in said.err
    assert "add cases/corpus/new.json" in said.err


def test_a_session_without_a_finding_is_0(tmp_path: Path) -> None:
    result = runner.invoke(app, ["fuzz", "-a", "flash-attn-2@emulated", "--examples", "5", "--reports", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert "5 cases (5 PASS)" in result.stdout
    assert "0 findings" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["-a", "no-such", "--examples", "1"], "there is no adapter 'no-such'"),
        (["-a", SWA, "--examples", "0"], "--examples is 0; give 1 or more"),
        (["-a", SWA, "--redis", "redis://x"], "--redis goes with --ray"),
    ],
)
def test_bad_use_is_one_sentence(tmp_path: Path, arguments: list[str], says: str) -> None:
    result = runner.invoke(app, ["fuzz", *arguments, "--reports", str(tmp_path)])
    assert isinstance(result.exception, UsageError)
    assert says in str(result.exception)


def test_the_line_of_progress() -> None:
    progress = FuzzProgress(examples=100, seconds=None)
    progress.started -= 10.0
    line = progress.line(50, 25, 1, 30, 80)
    assert re.fullmatch(r"50 cases, 25 runs to shrink, 7\.5/s, 1 finding, 30/80 edges, 0:10 left", line)
    timed = FuzzProgress(examples=None, seconds=65.0)
    assert timed.line(0, 0, 0, 0, 80).endswith("0 findings, 0/80 edges, 1:05 left")
