"""Every recipe passes right kernels, catches each fault it claims to see, and passes those it is blind to."""

from __future__ import annotations

import pytest

from cases.schema import AttentionCase, KvLayout, PageOrder, Request
from references.certificates import RECIPES, applicable
from tests.certificates.emulator import Kernel
from tests.certificates.faults import FAULTS
from tests.certificates.running import certify, traits_of

MIXED = AttentionCase(
    requests=(Request(64, 16), Request(100, 70), Request(21, 3)),
    window_left=44,
    page_size=4,
    num_qo_heads=8,
    num_kv_heads=2,
)
FULL = MIXED.replace(window_left=None, requests=(Request(64, 16), Request(104, 26), Request(52, 13)))
CASES = {
    "window": MIXED,
    "full": FULL,
    "softcap": FULL.replace(logits_soft_cap=30.0),
    "sinks": MIXED.replace(sinks=True),
    "full sinks": FULL.replace(sinks=True),
    "no prefix": MIXED.replace(requests=(Request(0, 90), Request(0, 1))),
    "decode": MIXED.replace(requests=(Request(300, 1), Request(65, 1)), page_size=16),
    "bidirectional": MIXED.replace(causal=False, window_left=7),
    "empty extend": MIXED.replace(requests=(Request(30, 0), Request(7, 9))),
    "multi-head": FULL.replace(num_kv_heads=8),
    "one kv head": FULL.replace(num_kv_heads=1),
    "fp16": MIXED.replace(dtype="float16", kv_dtype="float16"),
    "fp32": MIXED.replace(dtype="float32", kv_dtype="float32"),
    "fp8 cache": MIXED.replace(kv_dtype="float8_e4m3fn", k_scale=0.37, v_scale=1.3),
    "e5m2 cache": FULL.replace(kv_dtype="float8_e5m2", k_scale=0.5, v_scale=2.0),
    "head_dim 128": FULL.replace(head_dim_qk=128, head_dim_vo=128, kv_layout=KvLayout.HND),
    "head_dim 96": FULL.replace(head_dim_qk=96, head_dim_vo=96),
    "head_dim 32": FULL.replace(head_dim_qk=32, head_dim_vo=32),
    "head_dim 192/128": FULL.replace(head_dim_qk=192, head_dim_vo=128, page_order=PageOrder.INTERLEAVED),
    "sm_scale": FULL.replace(sm_scale=0.7),
}
KERNELS = {
    "one pass": Kernel(tile=32),
    "merge": Kernel(tile=64, legs=2, log2_lse=True, round_row_sum=True),
    "splits": Kernel(tile=16, splits=3),
}


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", RECIPES)
def test_a_right_kernel_passes(name: str, case: str, kernel: str) -> None:
    reason = applicable(name, CASES[case], traits_of(KERNELS[kernel]))
    if reason is not None:
        assert reason in OUTSIDE[name], f"{name} refuses {case!r}: {reason}"
        return
    result = certify(name, CASES[case], KERNELS[kernel])
    assert result.passed, result.message
    assert result.s_max <= 0.1
    assert result.n_max is not None
    assert result.judged > 0.3


# Why a recipe does not apply to some of CASES. A refusal that is not listed here fails the test above.
OUTSIDE: dict[str, tuple[str, ...]] = {
    "flat": (),
    "step": (),
    "heads": (),
    "select": ("a softcap leaves no gap of 104 between scores",),
    "lure-plus": ("a softcap holds hidden scores down to the cap",),
    "lure-minus": (),
    "sink": ("the case has no sinks",),
}


def shown_by(name: str, fault: str, expect: bool) -> tuple[int, list[str]]:
    """Over CASES x KERNELS: how many show the fault at all, and which of them disagree with `expect`."""
    tried, disagree = 0, []
    for case_name in ("window", "full", "softcap", "sinks", "full sinks", "decode"):
        case = CASES[case_name]
        for kernel_name, right in KERNELS.items():
            kernel = right.replace(**FAULTS[fault].changes)
            if applicable(name, case, traits_of(right)) or not FAULTS[fault].shows(case, right):
                continue
            tried += 1
            if certify(name, case, kernel).passed == expect:
                disagree.append(f"{case_name}, {kernel_name}")
    return tried, disagree


@pytest.mark.parametrize(("name", "fault"), [(n, f) for n, r in RECIPES.items() for f in r.sees])
def test_what_a_recipe_sees_is_caught(name: str, fault: str) -> None:
    tried, missed = shown_by(name, fault, expect=True)
    assert tried > 0
    assert not missed


@pytest.mark.parametrize(("name", "fault"), [(n, f) for n, r in RECIPES.items() for f in r.blind_to])
def test_what_a_recipe_is_blind_to_passes(name: str, fault: str) -> None:
    tried, caught = shown_by(name, fault, expect=False)
    assert tried > 0
    assert not caught


def test_every_fault_is_seen_by_some_recipe() -> None:
    assert set(FAULTS) <= {fault for recipe in RECIPES.values() for fault in recipe.sees}
