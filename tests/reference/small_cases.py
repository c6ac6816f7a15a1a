"""Small cases drawn by Hypothesis, and data for them: each tensor entry is random by its logical place."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import settings
from hypothesis import strategies as st

from cases.recipes import LogicalData, make_data
from cases.schema import AttentionCase, Mode, PageOrder, Poison

# The same draws everywhere, so that a failure on one machine is a failure on the next.
reproducible = settings(derandomize=True, max_examples=30, deadline=None, database=None)

WINDOWS = (None, 0, 1, 2, 3, 7, 12)


@st.composite
def small_cases(draw: st.DrawFn, **fixed: Any) -> AttentionCase:
    """One to three requests of up to 13 + 9 tokens; `fixed` overrides what is drawn."""
    requests = draw(st.lists(st.tuples(st.integers(0, 13), st.integers(0, 9)), min_size=1, max_size=3))
    if not any(extend for _, extend in requests):
        requests[0] = (requests[0][0], 1 + draw(st.integers(0, 8)))
    kv_heads = draw(st.sampled_from((1, 2, 3)))
    fields: dict[str, Any] = {
        "requests": tuple(requests),
        "mode": Mode.EXTEND,
        "num_kv_heads": kv_heads,
        "num_qo_heads": kv_heads * draw(st.sampled_from((1, 2, 3))),
        "head_dim_qk": draw(st.sampled_from((4, 8))),
        "head_dim_vo": draw(st.sampled_from((4, 8))),
        "window_left": draw(st.sampled_from(WINDOWS)),
        "causal": draw(st.sampled_from((True, True, False))),
        "logits_soft_cap": draw(st.sampled_from((None, None, 1.5))),
        "sinks": draw(st.booleans()),
        "page_size": draw(st.sampled_from((1, 3, 4))),
        "page_order": draw(st.sampled_from(PageOrder)),
        "poison": Poison.FINITE,
        "recipe": draw(st.sampled_from(("normal", "spiky"))),
        "seed": draw(st.integers(0, 2**20)),
        "dtype": "float32",
        "kv_dtype": "float32",
    }
    return AttentionCase(**{**fields, **fixed})


def data_of(case: AttentionCase) -> LogicalData:
    return make_data(case, "cpu")


def doubled(data: LogicalData) -> LogicalData:
    """The same values in fp64, so that a test may transform them without rounding them anew."""
    return LogicalData(data.q.double(), data.k.double(), data.v.double(), data.sinks)


def close(a: torch.Tensor, b: torch.Tensor, atol: float = 1e-12) -> None:
    """Every entry within `atol`, infinities equal, no NaN on either side."""
    torch.testing.assert_close(a, b, rtol=0.0, atol=atol, equal_nan=False)
