"""Two derivations of one meaning: golden attention, and attention as transformers' models write it."""

from __future__ import annotations

import torch
from hypothesis import given
from small_cases import close, data_of, doubled, reproducible, small_cases

from cases.schema import AttentionCase
from references.golden import golden_attention
from references.hf_eager import hf_eager_attention

# fp32 on scores of a few units, sums of up to 22 keys: 2^-24 * (|s| + keys) * |v| stays below this.
FP32_ATOL = 5e-6


@reproducible
@given(small_cases(recipe="normal"))
def test_hf_eager_agrees_with_golden_to_fp32_accuracy(case: AttentionCase) -> None:
    data = data_of(case)
    golden = golden_attention(case, data)
    out, lse = hf_eager_attention(case, data)
    assert out.dtype is lse.dtype is torch.float32
    close(out.double(), golden.out, FP32_ATOL)
    close(lse.double(), golden.lse, FP32_ATOL)


@reproducible
@given(small_cases())
def test_in_fp64_they_agree_to_rounding(case: AttentionCase) -> None:
    data = doubled(data_of(case))
    golden = golden_attention(case, data)
    out, lse = hf_eager_attention(case, data, torch.float64)
    close(out, golden.out)
    close(lse, golden.lse)


def test_in_fp64_they_agree_on_fp8_caches_with_scales() -> None:
    case = AttentionCase(
        requests=((20, 5), (3, 9), (0, 6)),
        num_qo_heads=4,
        num_kv_heads=2,
        head_dim_qk=16,
        head_dim_vo=8,
        kv_dtype="float8_e4m3fn",
        k_scale=0.5,
        v_scale=0.25,
        window_left=6,
        sinks=True,
        logits_soft_cap=2.0,
    )
    golden = golden_attention(case, data_of(case))
    out, lse = hf_eager_attention(case, data_of(case), torch.float64)
    close(out, golden.out)
    close(lse, golden.lse)


def test_the_windows_edge_is_where_a_sliding_cache_cuts() -> None:
    """Every (P, E, W) round the edge: the cache keeps W - 1 tokens, one key fewer would show."""
    for window_left in (0, 1, 3, 4):
        for prefix in range(window_left + 3):
            for extend in range(1, window_left + 4):
                case = AttentionCase(
                    requests=((prefix, extend),),
                    num_qo_heads=2,
                    num_kv_heads=1,
                    head_dim_qk=4,
                    head_dim_vo=4,
                    window_left=window_left,
                )
                data = doubled(data_of(case))
                close(hf_eager_attention(case, data, torch.float64)[0], golden_attention(case, data).out)
