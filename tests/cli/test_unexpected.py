"""A fault of the harness's own is exit code 2 and one sentence that says where its traceback is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from test_bad_use import run_main

from harness.cli import explain, listing


@pytest.fixture(autouse=True)
def broken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail() -> None:
        raise KeyError("a key\nof two lines")

    monkeypatch.setattr(listing, "_suites", fail)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.delenv("ATTN_HARNESS_TRACEBACK", raising=False)


def test_the_traceback_is_in_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_main(monkeypatch, "list", "suites") == 2
    said = capsys.readouterr().err
    assert said.startswith("attn-harness: the harness itself failed: KeyError: 'a key")
    assert re.search(rf"\(at {re.escape(__file__)}:\d+\)", said)
    assert said.count("\n") == 1
    (file,) = tmp_path.iterdir()
    assert said.endswith(f"; its traceback is in {file}.\n")
    assert "Traceback (most recent call last)" in file.read_text()
    assert "in listing" in file.read_text()


def test_a_variable_shows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ATTN_HARNESS_TRACEBACK", "1")
    assert run_main(monkeypatch, "list", "suites") == 2
    said = capsys.readouterr().err
    assert said.startswith("Traceback (most recent call last)")
    assert said.endswith("; its traceback is above.\n")
    assert not list(tmp_path.iterdir())


def test_where_no_file_can_be_written_the_variable_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    assert run_main(monkeypatch, "list", "suites") == 2
    assert capsys.readouterr().err.endswith("; set ATTN_HARNESS_TRACEBACK=1 to see its traceback.\n")


def test_a_file_that_cannot_be_had_is_named_as_the_system_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(listing, "_suites", lambda: (tmp_path / "no").read_text())
    assert run_main(monkeypatch, "list", "suites") == 2
    assert capsys.readouterr().err.startswith(f"attn-harness: {tmp_path / 'no'}: No such file or directory; its trace")


def test_so_does_one_in_a_child(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("of our own")

    monkeypatch.setattr(explain, "explain_record", fail)
    (tmp_path / "case.json").write_text('{"schema_version": 1, "requests": [[3, 2]]}')
    assert run_main(monkeypatch, "explain", str(tmp_path / "case.json"), "-a", "torch-sdpa") == 2
    said = capfd.readouterr()
    assert said.err.startswith("attn-harness: the harness itself failed: ZeroDivisionError: of our own (at ")
    assert (said.out, said.err.count("\n")) == ("", 1)
