"""What runs when nothing is named is said: by `doctor`, and by `run --help`."""

import json

import pytest
from test_bad_use import run_main

from harness.adapters import registry
from harness.cli import doctor, run, selection


@pytest.mark.parametrize("gpus", [(), ("0",)])
def test_doctor_names_what_a_run_leaves_out(
    gpus: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ("kernel", "kernel@emulated", "torch-sdpa", "torch-flex", "torch-flex-eager")
    entries = [registry.Entry(name, lambda hooks: None, None, name.endswith("@emulated")) for name in names]
    absent = registry.Entry("absent@emulated", lambda hooks: None, "not installed", True)
    monkeypatch.setattr(registry, "available", lambda: [*entries, absent])
    for module in (doctor, selection):
        monkeypatch.setattr(module, "gpu_ids", lambda: gpus)
    chosen = selection.select_adapters(())
    assert run_main(monkeypatch, "doctor", "--json") == 0
    facts = json.loads(capsys.readouterr().out)["adapters"]
    assert [fact["name"] for fact in facts if fact["default"]] == chosen
    assert run_main(monkeypatch, "doctor") == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "unless --adapter names them" in line]
    assert line.split(": ")[1].rstrip(".") == ", ".join(name for name in names if name not in chosen)


def test_help_of_run_names_the_default_suites(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_main(monkeypatch, "run", "--help") == 0
    said = " ".join(capsys.readouterr().out.replace("\u2502", " ").split())
    assert f"(default: {' and '.join(selection.DEFAULT_SUITES)})" in said
    assert all(name in said for name in selection.CPU_DEFAULTS)
    assert run.DEFAULT_SUITES is selection.DEFAULT_SUITES
