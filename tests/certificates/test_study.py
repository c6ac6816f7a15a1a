"""A slice of the studies whose figures stand in docs/certificates.md."""

from __future__ import annotations

import pytest
import torch

from cases.schema import AttentionCase, PageOrder, Request
from references.certificates import RECIPES, KernelTraits, applicable
from references.certificates.step import STEP
from tests.certificates import table
from tests.certificates.emulator import Kernel
from tests.certificates.faults import FAULTS
from tests.certificates.running import certify, ready_batch, traits_of
from tests.certificates.study import alarms


def caught_everywhere(sizes: tuple[int, ...]) -> None:
    found = table.study(sizes)
    assert not any(any(results.values()) for results in found.pop("none").values())
    for fault, results in found.items():
        assert set(results) == set(sizes), fault
        for size, evidence in results.items():
            assert any(evidence.get(name, False) for name in RECIPES), f"{fault} at {size}"


def test_every_fault_is_caught_by_some_certificate() -> None:
    caught_everywhere((64,))


@pytest.mark.nightly
def test_every_fault_is_caught_by_some_certificate_at_every_length() -> None:
    caught_everywhere((512, 2048, 8192, 65_536))


def test_drawn_cases_raise_no_alarm() -> None:
    state = alarms(0, 60, {}, None)
    assert "false alarms" not in state
    assert state["flat/run"] == 60


@pytest.mark.parametrize("legs", [1, 2])
@pytest.mark.parametrize("window", [None, 2, 1024])
def test_long_context(window: int | None, legs: int) -> None:
    order = {None: PageOrder.FAR_END, 2: PageOrder.INTERLEAVED, 1024: PageOrder.REVERSED}[window]
    case = AttentionCase(
        requests=(Request(16_384, 4), Request(70, 1)),
        window_left=window,
        num_qo_heads=2,
        num_kv_heads=1,
        page_order=order,
        pool_pages=4000,
    )
    kernel = Kernel(tile=512, legs=legs, log2_lse=legs == 2, round_row_sum=legs == 2)
    for name in RECIPES:
        if applicable(name, case, traits_of(kernel)) is None:
            result = certify(name, case, kernel)
            assert result.passed, result.message
            assert result.s_max <= 0.1
    wrong = certify("flat", case, kernel.replace(**FAULTS["one key dropped"].changes))
    assert not wrong.passed


def test_a_message_says_what_was_attended_to() -> None:
    case = AttentionCase(requests=(Request(40, 50), Request(100, 70)), window_left=31, page_size=4)
    longer = certify("flat", case, Kernel().replace(**FAULTS["window one key longer"].changes))
    assert "request 0 query 40 head 0 attended to 33 keys, 32 are visible" in longer.message
    assert longer.first == (0, 40, 0)
    moved = certify("flat", case, Kernel().replace(**FAULTS["page duplicated"].changes))
    assert "attended to 32 keys as it should, but to other ones" in moved.message
    mixed = certify("flat", case, Kernel(legs=2).replace(**FAULTS["bf16 LSE in the merge"].changes))
    assert "only the special columns" in mixed.message


def test_without_an_lse_the_code_sums_decide() -> None:
    case = AttentionCase(requests=(Request(130, 8),), window_left=90)
    for name in RECIPES:
        recipe = RECIPES[name]
        if applicable(name, case, KernelTraits()) is not None:
            continue
        built = recipe.build(case, "cpu")
        batch = ready_batch(case, built.data)
        for kernel, passes in ((Kernel(), True), (Kernel().replace(**FAULTS["V page wrong"].changes), False)):
            result = recipe.judge(case, built, table.emulate(batch, kernel)[0], None, KernelTraits())
            assert result.n_max is None
            assert result.passed == passes


def test_nan_is_wrong_and_an_unwritten_row_is_told() -> None:
    case = AttentionCase(requests=(Request(30, 3),))
    built = RECIPES["flat"].build(case, "cpu")
    out, lse = table.emulate(ready_batch(case, built.data), Kernel())
    out[1] = torch.nan
    result = RECIPES["flat"].judge(case, built, out, lse, KernelTraits())
    assert not result.passed
    assert result.s_max == float("inf")
    assert result.first == (0, 31, 0)
    assert result.measure()["wrong_rows"] == case.num_qo_heads


def test_outside_its_domain_a_recipe_says_why() -> None:
    narrow = AttentionCase(requests=(Request(9, 1),), head_dim_vo=16, head_dim_qk=16)
    assert "head_dim_vo 16" in str(applicable("flat", narrow, KernelTraits()))
    tight = AttentionCase(requests=(Request(9, 1),), logits_soft_cap=0.5)
    assert "softcap of 0.5" in str(applicable("step", tight, KernelTraits()))
    open_to_all = AttentionCase(requests=(Request(9, 4),), causal=False)
    assert "no key is hidden" in str(applicable("lure-plus", open_to_all, KernelTraits()))
    tiny_scale = AttentionCase(requests=(Request(9, 4),), dtype="float16", kv_dtype="float16", sm_scale=1e-6)
    assert "float16 cannot hold" in str(STEP.domain(tiny_scale, KernelTraits()))
    assert "float16 cannot hold" in str(applicable("select", tiny_scale, KernelTraits()))
    assert "9 legs" in str(applicable("flat", open_to_all, KernelTraits(merge_legs=9)))
