"""Tables that no terminal reads: every name whole, whatever COLUMNS and FORCE_COLOR say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cases import AttentionCase, Request
from harness.bench.rendering import print_measurements
from harness.cli import doctor, faults, fuzz, oracle
from harness.cli.consoles import make_console
from harness.cli.summary import print_summary
from harness.diagnosis.blame import Blame
from harness.faults.fuzz_cost import FuzzCost
from harness.faults.sensitivity import Sensitivity
from harness.faults.shots import LADDER
from harness.fuzzing.coverage import EdgeCount
from harness.fuzzing.session import SessionResult
from harness.record import Record
from harness.verdict import Verdict
from references.oracle import OracleRow

NAME = f"{'-'.join(['a-long-name'] * 40)}[test]"
CASE = AttentionCase(requests=(Request(9, 3),))


def summary_table() -> None:
    print_summary(make_console(), [Record(CASE, NAME, Verdict.PASS)], {})


def doctor_table() -> None:
    adapter = {"name": NAME, "runs": False, "why_not": f"why not {NAME}"}
    facts = {"versions": {}, "gpus": [], "cores": 1, "adapters": [adapter], "sglang": [], "vllm": []}
    doctor._print_facts(make_console(), facts)


def sensitivity_table() -> None:
    one = Sensitivity(NAME, "window", False, 1, 1, 1, ladder=(1,) * len(LADDER), first=("x", NAME, NAME))
    faults._print_sensitivity([one], [CASE])


def blame_table(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Blame(NAME, "window", "x", NAME, NAME, None, True, True, True)
    monkeypatch.setattr("harness.diagnosis.blame.blame_all", lambda *_, **__: [told])
    faults._blame([], [], [], 1, faults._SoFar(1), False)


def fuzz_cost_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.faults.fuzz_cost.fuzz_costs", lambda *_, **__: [FuzzCost(NAME, False, (1, 2, 3))])
    faults._fuzz([], 3, [], 1, faults._SoFar(1), False)


def oracle_table() -> None:
    oracle._print_table([OracleRow(NAME, NAME, "float32", "1", (4,))], None)


def bench_table() -> None:
    row = {"mix": NAME, "adapter": NAME, "cases_per_second": {"median": 1.0, "spread": 0.0}, "processes": 1}
    row |= {
        "shared_cases_per_second": None,
        "ratio_to_loops": {},
        "harness_share": 0.5,
        "wall_share": 0.5,
        "shared_wall_share": None,
        "peak_bytes": None,
    }
    print_measurements(make_console(), [row | {"milliseconds_per_case": {}}], {})


def fuzz_table() -> None:
    result = SessionResult(Path("x"), coverage={NAME: EdgeCount()})
    fuzz._print_summary(make_console(), result, coverage=False)


TABLES = [summary_table, doctor_table, sensitivity_table, blame_table, fuzz_cost_table, oracle_table, bench_table]


@pytest.mark.parametrize("table", [*TABLES, fuzz_table], ids=lambda table: table.__name__)
def test_a_name_is_whole_where_no_terminal_reads(
    table: Callable[..., None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    table(monkeypatch) if table in (blame_table, fuzz_cost_table) else table()
    said = capsys.readouterr().out
    assert NAME in said
    assert "\N{HORIZONTAL ELLIPSIS}" not in said


class Terminal:
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def test_a_terminal_has_its_own_width_or_what_a_table_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "90")
    monkeypatch.setattr("sys.stdout", Terminal())
    assert (make_console().width, make_console(least=120).width) == (90, 120)
