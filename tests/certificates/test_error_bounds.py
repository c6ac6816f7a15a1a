"""The row bound holds for right kernels, is near what they do, and is broken by wrong ones."""

from __future__ import annotations

import pytest
import torch

from cases.recipes import LogicalData, make_data
from cases.schema import AttentionCase, Request
from references.error_bounds import lse_bounds, row_bounds, worst
from references.golden import golden_attention, scores
from references.traits import KernelTraits
from references.visibility import visible_count
from tests.certificates.emulator import Kernel, emulate
from tests.certificates.faults import FAULTS
from tests.certificates.running import ready_batch, traits_of
from tests.certificates.test_recipes import CASES, FULL, KERNELS, MIXED


def ratios(case: AttentionCase, kernel: Kernel, traits: KernelTraits | None = None) -> tuple[float, float]:
    """Largest error/bound of the output and of the LSE."""
    data = make_data(case, "cpu")
    golden = golden_attention(case, data, moments=True)
    out, lse = emulate(ready_batch(case, data), kernel)
    traits = traits or traits_of(kernel)
    of_out, _ = worst(case, (out.double() - golden.out).abs(), row_bounds(case, data, golden, traits))
    bound = lse_bounds(case, data, golden, traits)
    return of_out, float(((lse - golden.lse).abs() / bound)[bound > 0].max())


@pytest.mark.parametrize("recipe", ["normal", "small", "spiky"])
@pytest.mark.parametrize("case", CASES)
def test_right_kernels_stay_within_their_bound(case: str, recipe: str) -> None:
    found = [ratios(CASES[case].replace(recipe=recipe), kernel) for kernel in KERNELS.values()]
    assert max(out for out, _ in found) < 0.9
    assert max(lse for _, lse in found) < 0.9
    if CASES[case].dtype != "float32":  # there eps, which covers every fp32 step, is far above what happens
        assert max(out for out, _ in found) > 0.2


@pytest.mark.parametrize("p_dtype", [torch.float32, torch.float16, torch.float8_e4m3fn])
@pytest.mark.parametrize("recipe", ["normal", "small", "spiky"])
def test_p_in_another_dtype(p_dtype: torch.dtype, recipe: str) -> None:
    case = MIXED.replace(requests=(Request(1500, 9), Request(20, 30)), window_left=None, recipe=recipe)
    of_out, of_lse = ratios(case, Kernel(p_dtype=p_dtype, round_row_sum=False))
    assert 0.1 < of_out < 1
    assert of_lse < 1


def test_p_in_fp8_breaks_the_bound_of_p_in_bf16() -> None:
    of_out, _ = ratios(FULL, Kernel(p_dtype=torch.float8_e4m3fn), KernelTraits())
    assert of_out > 1


def test_hardware_tanh_is_allowed_for() -> None:
    case = CASES["softcap"].replace(logits_soft_cap=5.0)
    assert ratios(case, Kernel(tanh_bits=11), KernelTraits())[0] < 0.9


def test_moments_against_their_definition() -> None:
    case = CASES["full sinks"].replace(requests=(Request(70, 5),), kv_dtype="float8_e4m3fn", v_scale=1.7)
    data = make_data(case, "cpu")
    golden = golden_attention(case, data, moments=True)
    assert golden.moments is not None
    n = int(visible_count(case)[-1])
    group = case.group_size
    p = torch.exp(scores(case, data.q[-1:], data.k[:n]).view(case.num_qo_heads, n) - golden.lse[-1][:, None])
    v = data.v[:n].double().repeat_interleave(group, 1).transpose(0, 1) * case.v_scale
    apart = v - golden.out[-1][:, None]
    torch.testing.assert_close((p[..., None] * v).sum(1), golden.out[-1])
    exact = (p[..., None] ** 2 * apart**2).sum(1)
    bound = golden.moments.squared_spread(golden.out)[-1]
    assert (bound >= exact).all()
    assert (bound <= 1.001 * exact).all()
    assert (golden.moments.spread(golden.out)[-1] >= (p[..., None] * apart.abs()).sum(1)).all()
    assert (golden.moments.magnitude()[-1] >= (p[..., None] * v.abs()).sum(1)).all()
    leg = (p[..., None] * v)[:, :70].sum(1)
    torch.testing.assert_close(golden.moments.leg[-1], leg)
    torch.testing.assert_close(golden.moments.mass[-1], p.sum(1))
    torch.testing.assert_close(golden.moments.p_max[-1], p.amax(1))


def test_moments_do_not_depend_on_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES["softcap"].replace(recipe="spiky")
    data = make_data(case, "cpu")
    whole = row_bounds(case, data, golden_attention(case, data, moments=True), KernelTraits(merge_legs=2))
    monkeypatch.setattr("references.golden.CHUNK_SCORES", 900)
    pieces = row_bounds(case, data, golden_attention(case, data, moments=True), KernelTraits(merge_legs=2))
    torch.testing.assert_close(whole, pieces, rtol=1e-3, atol=0)


def crafted() -> tuple[AttentionCase, LogicalData]:
    """V that knows how P rounds: every rounding of P to bf16 pushes the output the same way."""
    case = AttentionCase(requests=(Request(512, 1),), num_qo_heads=1, num_kv_heads=1)
    data = make_data(case, "cpu")
    s = scores(case, data.q, data.k)[0, 0, 0]
    p = torch.exp(s - s.max()).float()
    sign = torch.sign(p.bfloat16().float() - p)
    return case, LogicalData(data.q, data.k, sign[:, None, None].expand_as(data.v).to(data.v.dtype), None)


def test_the_statistical_form_is_for_data_that_does_not_know_the_rounding() -> None:
    case, data = crafted()
    golden = golden_attention(case, data)
    out, _ = emulate(ready_batch(case, data), Kernel(tile=1024))
    error = (out.double() - golden.out).abs()
    assert worst(case, error, row_bounds(case, data, golden, KernelTraits()))[0] > 0.6
    assert worst(case, error, row_bounds(case, data, golden, KernelTraits(), statistical=False))[0] < 0.9


@pytest.mark.parametrize("recipe", ["normal", "small"])
@pytest.mark.parametrize(
    "fault",
    ["window one key longer", "window one key shorter", "causal edge one later", "prefix only", "page dropped",
     "page duplicated", "foreign page", "stale slot", "one key dropped", "V page wrong", "kv head rotated"],
)  # fmt: skip
def test_wrong_sets_of_keys_break_the_bound(fault: str, recipe: str) -> None:
    case = AttentionCase(requests=(Request(1000, 4), Request(900, 8)), window_left=511, recipe=recipe)
    assert ratios(case, Kernel().replace(**FAULTS[fault].changes))[0] > 1


def test_rows_without_a_key_have_bound_0_and_a_leg_of_nothing_is_no_merge() -> None:
    case = MIXED.replace(requests=(Request(0, 3),), window_left=None)
    data = make_data(case, "cpu")
    golden = golden_attention(case, data, moments=True)
    single, merged = (row_bounds(case, data, golden, KernelTraits(merge_legs=legs)) for legs in (1, 2))
    assert (merged >= single).all()
    assert (merged <= single + 2.0**-8 * golden.out.abs() * (1 + 1e-9)).all()


def test_outputs_below_the_normal_numbers_of_fp16() -> None:
    """A sink that leaves the keys a millionth: every rounding is of subnormals, partial outputs' too."""
    case = AttentionCase(
        requests=(Request(13, 3),), dtype="float16", kv_dtype="float16", sinks=True, sm_scale=1.0, recipe="small"
    )
    data = make_data(case, "cpu")
    assert data.sinks is not None
    data = LogicalData(data.q, data.k, data.v, data.sinks + 14)
    golden = golden_attention(case, data, moments=True)
    out, _ = emulate(ready_batch(case, data), KERNELS["merge"])
    bound = row_bounds(case, data, golden, traits_of(KERNELS["merge"]))
    assert worst(case, (out.double() - golden.out).abs(), bound)[0] < 1


# Found by fuzzing FlashInfer on an H200: head 5 of the last row weighs its keys so unlike that golden is 3.8e-47.
SUBNORMAL = AttentionCase(
    requests=(Request(0, 1), Request(0, 1), Request(0, 1), Request(243, 1)),
    num_qo_heads=8,
    num_kv_heads=1,
    head_dim_qk=256,
    head_dim_vo=256,
    window_left=79,
    sm_scale=0.25,
    recipe="spiky",
    seed=1,
)


def test_golden_below_what_fp32_holds_may_come_out_as_0() -> None:
    data = make_data(SUBNORMAL, "cpu")
    golden = golden_attention(SUBNORMAL, data, moments=True)
    tiny = (golden.out != 0) & (golden.out.abs() < 2.0**-150)
    assert tiny.any()
    for kernel in KERNELS.values():
        out, _ = emulate(ready_batch(SUBNORMAL, data), kernel)
        assert (out[tiny] == 0).all()
        bound = row_bounds(SUBNORMAL, data, golden, traits_of(kernel))
        assert worst(SUBNORMAL, (out.double() - golden.out).abs(), bound)[0] < 0.9
        assert bound[tiny].max() < 1e-33


def zeros_beside(sink: float, dtype: str) -> tuple[float, float]:
    """The largest golden output where a sink leaves the keys a weight of exp(-sink), and error/bound of zeros."""
    case = AttentionCase(
        requests=(Request(13, 3),), dtype=dtype, kv_dtype=dtype, num_qo_heads=1, num_kv_heads=1, sinks=True
    )
    data = make_data(case, "cpu")
    assert data.sinks is not None
    data = LogicalData(data.q, data.k, data.v, torch.full_like(data.sinks, sink))
    golden = golden_attention(case, data, moments=True)
    size = golden.out.abs()
    return float(size.max()), worst(case, size, row_bounds(case, data, golden, KernelTraits()))[0]


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_zero_for_a_small_output_is_wrong_down_to_the_smallest_normal_numbers(dtype: str) -> None:
    for sink, expected in ((72.0, 1e-30), (76.5, 1e-32)):
        size, ratio = zeros_beside(sink, dtype)
        assert 0.3 * expected < size < 3 * expected
        assert ratio > 100
    assert zeros_beside(91.0, dtype)[1] < 1  # exp(-91) < 2^-126


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_a_kernel_that_flushes_what_is_no_normal_number_stays_within_the_bound(kernel: Kernel) -> None:
    """Weights below 2^-126 decide these rows: a sink takes nearly all, and a small V takes the products below."""
    case = AttentionCase(requests=(Request(300, 9),), num_qo_heads=2, num_kv_heads=1, recipe="spiky", sm_scale=0.25)
    data = make_data(case, "cpu")
    data = LogicalData(data.q, data.k, (data.v.double() * 2.0**-116).to(data.v.dtype), None)
    golden = golden_attention(case, data, moments=True)
    batch = ready_batch(case, data)
    kept, _ = emulate(batch, kernel)
    if not torch.set_flush_denormal(True):
        pytest.skip("this CPU does not flush denormals")
    try:
        out, _ = emulate(batch, kernel)
    finally:
        torch.set_flush_denormal(False)
    assert not torch.equal(out, kept)
    assert worst(case, (out.double() - golden.out).abs(), row_bounds(case, data, golden, traits_of(kernel)))[0] < 0.9
