"""Errors planted in a copy of the reference are caught by the tests that prove the reference."""

from __future__ import annotations

import pytest
import torch
from planted_errors import MUTANTS, Mutant, planted

pytest.importorskip("transformers", reason="not run: needs transformers")

from cases.recipes import make_data
from cases.schema import AttentionCase
from references.hf_eager import hf_eager_attention
from references.oracle import compare_masks, run_oracle
from references.oracle.judge import Judge

# One model and window suffice to catch each; gemma2 has a window, no window and a softcap.
MODEL, WINDOW = "gemma2", 4


def test_the_unplanted_copy_passes() -> None:
    """So that what catches a mutant is its error, not the copying."""
    nothing = Mutant("nothing", "golden.py", '"""The exact answer of `case`', '"""The exact answer of `case`')
    with planted(nothing) as copy:
        assert all(row.ok for row in run_oracle([MODEL], (WINDOW,), ("float32",), judge=copy))


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_the_oracle_catches(mutant: Mutant) -> None:
    with planted(mutant) as judge:
        rows = list(run_oracle([MODEL], (WINDOW,), ("float32",), judge=judge))
    worst = max(row.golden for row in rows)
    assert not all(row.ok for row in rows)
    assert worst > 1e-3, "far past the limit, not at its edge"
    assert all(row.hf_eager <= 1e-6 for row in rows), "the other reference is untouched"


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_the_oracle_catches_in_bf16(mutant: Mutant) -> None:
    with planted(mutant) as judge:
        rows = list(run_oracle([MODEL], (WINDOW,), ("bfloat16",), judge=judge))
    assert max(row.bound_ratio or 0.0 for row in rows) > 2


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_the_other_reference_catches(mutant: Mutant) -> None:
    case = AttentionCase(
        requests=((20, 9), (3, 5)),
        num_qo_heads=4,
        num_kv_heads=2,
        head_dim_qk=8,
        head_dim_vo=8,
        window_left=5,
        logits_soft_cap=1.5,
    )
    data = make_data(case, "cpu")
    other = hf_eager_attention(case, data, torch.float64)[0]
    with planted(mutant) as judge:
        assert float((judge.out(case, data) - other).abs().max()) > 1e-3
    assert float((Judge().out(case, data) - other).abs().max()) < 1e-12


@pytest.mark.parametrize("mutant", [m for m in MUTANTS if m.file == "visibility.py"], ids=lambda m: m.name)
def test_the_exhaustive_mask_comparison_catches(mutant: Mutant) -> None:
    with planted(mutant) as judge:
        assert compare_masks(5, judge=judge).differences > 0
