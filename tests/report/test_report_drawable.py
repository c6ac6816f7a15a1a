"""Evidence that the report draws: the worst rows' errors, and what an X-ray saw."""

import torch
from synthetic import a_case, a_record

from cases import Request
from harness.diagnosis.xray import Attended, expected_matrix
from harness.report.drawable import MAX_HEADS, row_errors, xray_evidence
from harness.report.visibility import MAX_ROWS, picture_rows
from harness.verdict import Verdict

CASE = a_case(0, requests=(Request(3, 2), Request(6, 3)), window_left=4, num_qo_heads=4, num_kv_heads=2)


def test_row_errors_are_those_of_the_worst_rows_request() -> None:
    ratio = torch.rand(CASE.total_q, CASE.num_qo_heads)
    ratio[3, 2] = 7.0  # the second row of request 1, at position 7
    ratio[4, 1] = torch.nan
    ratio[4, 0] = 1e-9
    drawn = row_errors(CASE, ratio)
    assert (drawn["request"], drawn["first_query"]) == (1, 6)
    assert drawn["ratio"][1][2] == 7.0
    assert drawn["ratio"][2][:2] == [1e-9, None]
    assert len(drawn["ratio"]) == 3


def test_of_a_long_request_the_part_with_the_worst_row_is_kept() -> None:
    case = a_case(0, requests=(Request(10, 500),), num_qo_heads=64, num_kv_heads=8)
    ratio = torch.zeros(500, 64)
    ratio[499, 3] = 2.0
    drawn = row_errors(case, ratio)
    assert (len(drawn["ratio"]), len(drawn["ratio"][0])) == (MAX_ROWS, MAX_HEADS)
    assert drawn["ratio"][-1][3] == 2.0
    assert drawn["first_query"] == 10 + 500 - MAX_ROWS


def test_an_xray_is_told_as_intervals_of_its_worst_head() -> None:
    expected = expected_matrix(CASE, "cpu")
    times = expected[:, None].long().repeat(1, CASE.num_qo_heads, 1)
    times[2, 1, 5 + 0 : 5 + 2] = 1  # request 1 (keys from 5), query at 6, sees keys 0 and 1 too
    times[4, 1, 5 + 8] = 0  # query at 8 does not see itself
    nothing = torch.zeros(CASE.total_q, CASE.num_qo_heads, dtype=torch.int64)
    kv_head = torch.arange(CASE.num_qo_heads).repeat(CASE.total_q, 1) // CASE.group_size
    evidence = xray_evidence(Attended(CASE, expected, times, nothing, kv_head, nothing.bool()))
    assert evidence.measure == {
        "request": 1,
        "head": 1,
        "wrong_keys": 3,
        "extra": [[6, 0, 1]],
        "missing": [[8, 8, 8]],
    }
    assert evidence.passed is None
    assert not evidence.decides
    picture = picture_rows(a_record(CASE, Verdict.WRONG).replace(evidence=(evidence,)), None)
    assert picture is not None
    assert (picture["seen"], picture["extra"], picture["marked"]) == (True, [[6, 0, 1]], 6)
