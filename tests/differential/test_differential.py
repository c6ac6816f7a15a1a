"""The differential suite: every case of the chosen suites through every adapter that can run here.

Cases and adapters are chosen on the command line (`--suite`, `--adapter`); this file only says what
a pass is. See `harness/pytest_plugin.py`.
"""

import pytest

from harness.pytest_plugin import DifferentialCheck


def test_case(differential: DifferentialCheck) -> None:
    differential.assert_pass()


@pytest.mark.nightly
def test_case_with_all_evidence(differential: DifferentialCheck) -> None:
    """Every certificate and every metamorphic relation (unless `--evidence` says otherwise)."""
    differential.assert_pass()


def test_adapter_not_run(adapter_not_run: str) -> None:
    """One item for each adapter that cannot run here: skipped by name, never passed."""
    raise AssertionError(f"{adapter_not_run} was reported as not run, and ran")
