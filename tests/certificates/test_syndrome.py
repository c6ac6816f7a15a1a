"""Wrong keys are named from a single FLAT run."""

from __future__ import annotations

import pytest
import torch

from cases.schema import AttentionCase, Request
from references.certificates import RECIPES
from references.certificates.syndrome import Decoding, KnownKeys, row_errors
from tests.certificates.emulator import Kernel, emulate
from tests.certificates.faults import FAULTS
from tests.certificates.running import ready_batch

CASE = AttentionCase(
    requests=(Request(400, 5), Request(90, 4)), window_left=299, page_size=16, num_qo_heads=2, num_kv_heads=1
)
ROW = 4  # the last of request 0: position 404 sees 105..404


def decoded(fault: str) -> Decoding | None:
    """What the decoder makes of the last row of request 0. Stale slots of the row's own pages are known."""
    built = RECIPES["flat"].build(CASE, "cpu")
    batch = ready_batch(CASE, built.data)
    out, lse = emulate(batch, Kernel(legs=1).replace(**FAULTS[fault].changes))
    plain = [c for c in range(CASE.head_dim_vo) if c not in built.special]
    # Own keys and the stale slots after them, then the pages of request 1, in whole pages.
    tables = [batch.page_table[i, : batch.paging.owned[i]].long() for i in range(2)]
    words = torch.cat([batch.v_pool[table, :, 0].flatten(0, 1) for table in tables])[:, plain]
    known = KnownKeys(words, CASE.requests[0].kv_len, CASE.page_size)
    errors = row_errors(built.exact.code[ROW, 0], 300, out[ROW, 0], float(lse[ROW, 0]), 1.0, plain)
    assert errors is not None
    return known.decode(105, 405, *errors)


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("window one key longer", Decoding("one key", (104,), ())),
        ("window one key shorter", Decoding("one key", (), (105,))),
        ("window ignored", Decoding("run", tuple(range(105)), ())),
        ("causal edge one later", Decoding("one key", (405,), ())),
        ("causal edge one earlier", Decoding("one key", (), (404,))),
        ("prefix only", Decoding("run", (), tuple(range(400, 405)))),
        ("one key dropped", Decoding("one key", (), (292,))),
        ("page dropped", Decoding("run", (), tuple(range(128, 144)))),
        ("page duplicated", Decoding("page", tuple(range(112, 128)), tuple(range(384, 400)))),
        ("stale slot", Decoding("exchange", (405,), (205,))),
    ],
)
def test_the_wrong_keys_are_named(fault: str, expected: Decoding) -> None:
    assert decoded(fault) == expected


def test_a_foreign_page_is_named() -> None:
    found = decoded("foreign page")
    assert found is not None
    assert (found.kind, found.dropped) == ("page", tuple(range(256, 272)))
    assert found.added[0] == 26 * 16  # request 0 owns 26 pages; the first of request 1 follows


def test_a_right_row_has_nothing_to_explain() -> None:
    built = RECIPES["flat"].build(CASE, "cpu")
    out, lse = emulate(ready_batch(CASE, built.data), Kernel())
    errors = row_errors(built.exact.code[ROW, 0], 300, out[ROW, 0], float(lse[ROW, 0]), 1.0, [0, 1, 2])
    assert errors is not None
    assert errors[1] == 0
    assert not errors[0].any()


def test_pairs_and_shifted_windows() -> None:
    words = RECIPES["flat"].build(CASE, "cpu").codes[:405, 0, :60]
    known = KnownKeys(words, 405, 16)

    def error(added: list[int], dropped: list[int]) -> torch.Tensor:
        return words[added].long().sum(0) - words[dropped].long().sum(0)

    assert known.decode(105, 405, error([17, 60], []), 2) == Decoding("pair", (17, 60), ())
    assert known.decode(105, 405, error([], [200, 301]), -2) == Decoding("pair", (), (200, 301))
    assert known.decode(105, 405, error([103, 104], [404]), 1) == Decoding("edges", (103, 104), (404,))
    assert known.decode(105, 405, error([1, 5, 9, 20], [110, 150, 222, 300]), 0) is None


def test_a_row_without_integers_cannot_be_decoded() -> None:
    code = torch.zeros(4)
    assert row_errors(code, 3, torch.full((4,), torch.nan), 1.0, 1.0, [0, 1]) is None
