"""Adapters that misbehave, on the command line: a sentence and the right exit code, never a traceback."""

from pathlib import Path

import pytest
from test_bad_use import run_main

FILE = Path(__file__).parents[1] / "running" / "misbehaving.py"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("RaisesInARule", "ZeroDivisionError"),
        ("RefusesWithoutAReason", "returned ''; return a reason"),
        ("RefusesWithANumber", "returned 5; return a reason"),
    ],
)
def test_doctor_tells_a_rule_that_cannot_be_used(
    name: str, says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_main(monkeypatch, "doctor", "-a", f"{FILE}:{name}") == 2
    said = capsys.readouterr().out
    assert said.count("\n") == 1
    assert says in said
