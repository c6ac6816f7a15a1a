"""The picture of a finding: held against the reference's own visibility rule."""

from typing import Any

import pytest
import torch
from synthetic import a_case, a_finding

from cases import Request
from cases.ragged import query_rows
from harness.report.model import worst_place
from harness.report.visibility import MAX_KEYS, MAX_ROWS, picture_rows, visible_keys
from harness.verdict import Evidence
from references.visibility import visible_interval


@pytest.mark.parametrize("window_left", [None, 0, 3, 31])
@pytest.mark.parametrize("causal", [True, False])
def test_the_keys_drawn_are_those_of_the_reference(window_left: int | None, causal: bool) -> None:
    case = a_case(0, requests=(Request(9, 5), Request(0, 7), Request(40, 1)), window_left=window_left, causal=causal)
    rows = query_rows(case, "cpu")
    first, last = visible_interval(case, rows)
    drawn = [visible_keys(case, int(r), int(p)) for r, p in zip(rows.request, rows.position, strict=True)]
    assert torch.equal(torch.tensor(drawn), torch.stack([first, last], 1))


def test_a_small_request_is_drawn_whole_with_the_worst_row_marked() -> None:
    record = a_finding(a_case(0, requests=(Request(3, 2), Request(6, 3)), window_left=4))
    picture = picture_rows(record, {"request": 1, "position": 7, "head": 2})
    assert picture is not None
    assert (picture["first_query"], picture["first_key"], picture["keys"]) == (6, 0, 9)
    assert picture["rows"] == [[2, 7], [3, 8], [4, 9]]
    assert (picture["marked"], picture["head"], picture["seen"]) == (7, 2, False)


def test_of_a_long_request_the_part_around_the_windows_edge_is_drawn() -> None:
    record = a_finding(a_case(0, requests=(Request(40_000, 500),), window_left=1023))
    picture = picture_rows(record, {"request": 0, "position": 40_300})
    assert picture is not None
    assert (len(picture["rows"]), picture["keys"]) == (MAX_ROWS, MAX_KEYS)
    assert picture["first_query"] <= 40_300 < picture["first_query"] + MAX_ROWS
    edge = 40_300 - 1023
    assert picture["first_key"] <= edge < picture["first_key"] + MAX_KEYS


def test_an_xray_gives_what_was_seen() -> None:
    xray = Evidence("xray", None, {"request": 0, "head": 1, "extra": [[4, 0, 1]], "missing": []}, decides=False)
    record = a_finding(a_case(0, requests=(Request(3, 2),), window_left=2))
    picture = picture_rows(record.replace(evidence=(*record.evidence, xray)), None)
    assert picture is not None
    assert (picture["seen"], picture["extra"], picture["marked"]) == (True, [[4, 0, 1]], 4)


def test_without_a_place_there_is_no_picture() -> None:
    assert picture_rows(a_finding(0), None) is None


@pytest.mark.parametrize(
    "measure",
    [
        {},
        {"request": "x", "extra": [], "missing": []},
        {"request": 0, "extra": [5], "missing": []},
        {"request": 0, "extra": [], "missing": [["a", 0, 1]]},
    ],
)
def test_an_xray_of_another_shape_is_not_drawn(measure: dict[str, Any]) -> None:
    record = a_finding(a_case(0, requests=(Request(3, 2),), window_left=2))
    odd = record.replace(evidence=(*record.evidence, Evidence("xray", None, measure, decides=False)))
    assert picture_rows(odd, None) is None


def test_a_place_of_another_type_is_no_place() -> None:
    odd = Evidence("bound", False, {"worst": {"request": "x", "position": [1]}})
    assert worst_place(a_finding(0).replace(evidence=(odd,))) is None
