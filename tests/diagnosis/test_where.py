"""Where an output is wrong, in words."""

import pytest
import torch

from cases.schema import AttentionCase, Request
from harness.diagnosis.where import say_where, spans

CASE = AttentionCase(requests=(Request(20, 30), Request(0, 5), Request(64, 1)), window_left=31)


def mask(case, rows, heads=None):
    wrong = torch.zeros((case.total_q, case.num_qo_heads), dtype=torch.bool)
    wrong[torch.tensor(rows)[:, None], torch.tensor(list(heads or range(case.num_qo_heads)))] = True
    return wrong


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([3], "3"),
        ([3, 4, 5], "3..5"),
        ([1, 3, 4, 9], "1, 3..4 and 9"),
        ([0, 2, 4, 6, 8, 10, 12], "0, 2, 4, 6, 8 and ... (7 in all)"),
    ],
)
def test_spans(values, words):
    assert spans(values) == words


def test_nothing_wrong_nothing_said():
    assert say_where(CASE, torch.zeros((36, 8), dtype=torch.bool)) == []


def test_past_the_window():
    past = [*range(12, 30), 35]  # positions 32..49 of request 0, and 64 of request 2
    assert say_where(CASE, mask(CASE, past)) == [
        "requests with a prefix: request 0, query positions 32..49 of 20..49 (past window_left=31), all heads",
        "request 2, query position 64 (past window_left=31), all heads",
    ]


def test_no_edge_is_named_that_does_not_separate():
    lines = say_where(CASE, mask(CASE, [*range(13, 30), 35]))  # position 32 is past the window and right
    assert not any("window" in line for line in lines)


def test_everything():
    assert say_where(CASE, mask(CASE, range(36))) == ["all 36 rows of all 3 requests, all heads"]


def test_page_and_tile_edges():
    case = AttentionCase(requests=(Request(10, 30),), page_size=16)
    assert "(from the page edge at 16)" in say_where(case, mask(case, range(6, 30)))[0]
    case = AttentionCase(requests=(Request(10, 100),), page_size=1)
    assert "(from the tile edge at 64)" in say_where(case, mask(case, range(54, 100)))[0]
    assert "(from row 64, a tile edge of the rows)" in say_where(case, mask(case, range(64, 100)))[0]


@pytest.mark.parametrize(
    ("heads", "words"),
    [
        (range(8), "all heads"),
        ((4, 5, 6, 7), "the query heads of kv head 1"),
        ((3, 7), "heads 3 of every group of 4"),
        ((2,), "head 2 of 8"),
    ],
)
def test_heads(heads, words):
    assert say_where(CASE, mask(CASE, [0], heads))[0].endswith(words)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([0, 30], "requests of several new rows: request 0"),
        ([30, 35], "all requests but the first"),
        ([35], "only the last request"),
        ([1], "only the first request"),
    ],
)
def test_which_requests(rows, words):
    assert say_where(CASE, mask(CASE, rows))[0].startswith(words)


def test_many_requests_take_few_lines():
    case = AttentionCase(requests=tuple(Request(i, 2) for i in range(20)))
    lines = say_where(case, mask(case, range(0, 40, 2)))
    assert len(lines) == 3
    assert lines[-1] == "and requests 2..19 of 20"
