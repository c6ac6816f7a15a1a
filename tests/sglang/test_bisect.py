"""bisect: which environment is named. The workers are this project's own interpreter, or none at all."""

import sys

import pytest

from cases.schema import AttentionCase, Request
from harness.cli.bisect import Step, examine_everywhere, first_change, step_lines
from harness.errors import UsageError
from harness.record import Record
from harness.running.options import RunOptions
from harness.verdict import Verdict

CASE = AttentionCase(requests=(Request(3, 2),))


def steps(*verdicts):
    return [Step(str(i), Record(CASE, "a", v)) for i, v in enumerate(verdicts)]


def test_the_first_change_is_named():
    assert first_change(steps(Verdict.WRONG, Verdict.WRONG, Verdict.PASS, Verdict.WRONG)) == 2


def test_no_change_is_none():
    assert first_change(steps(Verdict.PASS, Verdict.PASS)) is None


def test_what_did_not_run_is_passed_over():
    assert first_change(steps(Verdict.WRONG, Verdict.UNSUPPORTED, Verdict.ERROR, Verdict.WRONG)) is None
    assert first_change(steps(Verdict.UNSUPPORTED, Verdict.PASS)) is None
    assert first_change(steps(Verdict.WRONG, Verdict.ERROR, Verdict.PASS)) == 2


def test_an_environment_that_cannot_run_it_is_named():
    with pytest.raises(UsageError, match="no-such-python"):
        examine_everywhere(CASE, "torch-sdpa", ["no-such-python"], RunOptions(rerun=False))


def test_two_environments_in_order():
    found = examine_everywhere(CASE, "flash-attn-4@emulated", [sys.executable] * 2, RunOptions(rerun=False))
    assert [s.record.verdict for s in found] == [Verdict.PASS, Verdict.PASS]


def test_a_step_says_which_versions_gave_what():
    versions = {"python": "3.12.3", "torch": "2.11.0", "sglang": "0.5.12"}
    record = Record(CASE, "a", Verdict.WRONG, reason="6 of 6 rows", max_abs_diff=1.625, versions=versions)
    told = step_lines(Step("/old/bin/python", record))
    assert told == "/old/bin/python  (sglang 0.5.12, torch 2.11.0)\n    WRONG, max-abs-diff 1.625: 6 of 6 rows"
    assert step_lines(Step("p", Record(CASE, "a", Verdict.PASS, versions={}))) == "p  ()\n    PASS"
