"""The visibility rule against transformers' masks and sliding cache, exhaustively."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("transformers", reason="not run: needs transformers")

from cases.schema import AttentionCase
from references.oracle import OracleError, compare_masks
from references.oracle.judge import Judge, rule_interval


def test_every_point_up_to_40_agrees() -> None:
    result = compare_masks(40)
    assert result.points == 41 * 40 * 39
    assert result.full_points == 41 * 40
    assert result.differences == 0, result.first
    assert result.ok


def test_the_mask_function_alone_agrees_for_windows_up_to_40_and_one_key() -> None:
    """`sliding_window_causal_mask_function(W)` at every (q, k) up to 80; W = 1 has no cache but a mask."""
    from transformers.masking_utils import sliding_window_causal_mask_function

    position = torch.arange(80)
    for window in range(1, 41):
        theirs = sliding_window_causal_mask_function(window)(0, 0, position[:, None], position[None, :])
        first, last = rule_interval(AttentionCase(requests=((0, 80),), window_left=window - 1))
        assert torch.equal(theirs, (position >= first[:, None]) & (position < last[:, None])), window


@pytest.mark.parametrize("shift", [(-1, 0), (1, 0), (0, -1), (0, 1)])
def test_an_interval_off_by_one_at_either_end_is_found(shift: tuple[int, int]) -> None:
    def shifted(case: AttentionCase) -> tuple[torch.Tensor, torch.Tensor]:
        first, last = rule_interval(case)
        return (first + shift[0]).clamp(min=0), last + shift[1]

    result = compare_masks(6, judge=Judge(interval=shifted))
    assert result.differences > 0
    assert not result.ok
    assert result.first is not None
    assert "transformers keeps positions" in result.first


def test_a_key_that_the_cache_dropped_is_found() -> None:
    """No window at all in the rule: with P past the window the mask of the kept keys alone may look right."""

    def no_window(case: AttentionCase) -> tuple[torch.Tensor, torch.Tensor]:
        return rule_interval(case.replace(window_left=None))

    assert compare_masks(5, judge=Judge(interval=no_window)).differences > 0


def test_a_limit_below_the_smallest_window_is_refused() -> None:
    with pytest.raises(OracleError, match="limit is 1; give 2 or more"):
        compare_masks(1)
