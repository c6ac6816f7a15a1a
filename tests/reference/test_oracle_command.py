"""`attn-harness oracle`, called the way the command line calls it."""

from __future__ import annotations

import json

import pytest
import typer
from typer.testing import CliRunner

pytest.importorskip("transformers", reason="not run: needs transformers")

from harness.cli import oracle as command
from harness.errors import UsageError
from references.oracle import table

SMALL = ["--models", "gemma2", "--windows", "4", "--dtypes", "float32", "--mask-limit", "3"]


@pytest.fixture
def app() -> typer.Typer:
    made = typer.Typer()
    made.command()(command.oracle)
    return made


def test_the_table_names_model_and_layer_and_says_ok(app: typer.Typer) -> None:
    result = CliRunner().invoke(app, SMALL)
    assert result.exit_code == 0
    lines = [line for line in result.stdout.splitlines() if line.startswith("gemma2")]
    assert [line.split()[1] for line in lines] == ["sliding", "full"]
    assert all(line.rstrip().endswith("ok") for line in lines)
    assert "masks: 24 points (P, E, W) up to 3 and 12 points (P, E) with no window" in result.stdout


def test_json_holds_the_rows_and_the_masks(app: typer.Typer) -> None:
    body = json.loads(CliRunner().invoke(app, [*SMALL, "--json"]).stdout)
    assert [row["layer_kind"] for row in body["rows"]] == ["sliding", "full"]
    assert all(row["ok"] and row["golden"] <= 1e-6 for row in body["rows"])
    assert body["masks"]["differences"] == 0


def test_markdown_is_the_table_of_the_docs(app: typer.Typer) -> None:
    text = CliRunner().invoke(app, [*SMALL, "--markdown"]).stdout
    assert text.startswith("| model | layer |")
    assert text.count("| gemma2 |") == 2


def test_a_difference_is_exit_code_1(app: typer.Typer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "FP32_LIMIT", 1e-12)
    result = CliRunner().invoke(app, SMALL)
    assert result.exit_code == 1
    assert "FAIL" in result.stdout


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--models", "bert"], "model 'bert' is unknown"),
        (["--models", ","], "no model is named"),
        (["--windows", "two"], "--windows is 'two'; give integers"),
        (["--dtypes", "int8", "--windows", "4"], "dtypes are ['int8']"),
    ],
)
def test_bad_use_is_one_sentence(app: typer.Typer, options: list[str], said: str) -> None:
    problem = CliRunner().invoke(app, options).exception
    assert isinstance(problem, UsageError)
    assert said in str(problem)
