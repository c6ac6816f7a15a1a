"""The references against transformers' own models: every architecture, layer kind and (P, E, W) point."""

from __future__ import annotations

import pytest

pytest.importorskip("transformers", reason="not run: needs transformers")

from references.oracle import MODELS, WINDOWS, OracleError, render_markdown, run_oracle
from references.oracle.points import chunkings, edge_lengths
from references.oracle.table import FP32_LIMIT, OracleRow


@pytest.mark.parametrize("name", MODELS)
def test_the_references_agree_with_the_model(name: str) -> None:
    rows = list(run_oracle([name], dtypes=("float32",)))
    assert [row.layer_kind for row in rows] == list(dict.fromkeys(MODELS[name].kinds))
    for row in rows:
        assert row.windows == WINDOWS
        assert row.mask_differences == 0, row
        assert row.golden <= FP32_LIMIT, row
        assert row.hf_eager <= FP32_LIMIT, row
        assert row.ok, row
        grid = sum(len(edge_lengths(w)) ** 2 for w in WINDOWS)
        assert row.points > grid, "the grid of (P, E), and prefills, one-shots and chunks"


@pytest.mark.parametrize("name", MODELS)
def test_bf16_models_stay_within_the_bound_of_each_row(name: str) -> None:
    check_bf16(name, (8,))


@pytest.mark.nightly
@pytest.mark.parametrize("name", MODELS)
def test_bf16_models_stay_within_the_bound_of_each_row_at_every_window(name: str) -> None:
    check_bf16(name, WINDOWS)


def check_bf16(name: str, windows: tuple[int, ...]) -> None:
    for row in run_oracle([name], windows, ("bfloat16",)):
        assert row.bound_ratio is not None
        assert 0.05 < row.bound_ratio <= 1.0, "a bound that is far from what rounding does proves little"
        assert row.ok, row


def test_lengths_stand_below_at_and_above_the_edges() -> None:
    for window in WINDOWS:
        assert {window - 1, window, window + 1} <= set(edge_lengths(window))
        assert max(edge_lengths(window)) > 2 * window
        assert any(len(chunks) > 3 and max(chunks) > 1 for chunks in chunkings(window)), "several chunks"
        assert any(chunks.count(1) > window for chunks in map(tuple, chunkings(window))), "decode past the window"


def test_a_row_that_differs_or_compared_nothing_is_not_ok() -> None:
    def row(dtype: str = "float32", **changes: float) -> OracleRow:
        fields = {"calls": 1, "golden": 1e-7, "hf_eager": 1e-7, "one_shot": 1e-7, **changes}
        return OracleRow("m", "full", dtype, "5.24.0", (2,), **fields)  # type: ignore[arg-type]

    assert row().ok
    assert not row(calls=0).ok
    assert not row(mask_differences=1).ok
    for name in ("golden", "hf_eager", "one_shot"):
        assert not row(**{name: 2e-5}).ok
        assert not row(**{name: float("inf")}).ok
    assert row("bfloat16", bound_ratio=0.9, golden=0.01).ok
    assert not row("bfloat16", bound_ratio=1.1).ok
    assert not row("bfloat16", golden=0.0).ok, "no bound was taken"
    assert "FAIL" in render_markdown([row(golden=1.0)])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((["bert"],), "model 'bert' is unknown; use one of llama"),
        (([],), "no model is named"),
        ((["llama"], (1,)), "windows are [1]; give one or more of 2 and above"),
        ((["llama"], (4,), ("float64",)), "dtypes are ['float64']; use one or more of float32"),
    ],
)
def test_bad_use_is_one_sentence(arguments: tuple[object, ...], said: str) -> None:
    with pytest.raises(OracleError) as caught:
        list(run_oracle(*arguments))  # type: ignore[arg-type]
    assert said in str(caught.value)
