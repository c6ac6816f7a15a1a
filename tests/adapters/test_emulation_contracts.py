"""What the emulated libraries keep of the real ones' contracts, beyond giving right answers."""

import dataclasses
import math

import pytest
import torch

from cases.batch import build_batch
from cases.schema import AttentionCase, Execution, Mode
from harness.adapters.flash_attention import FlashAttention2, FlashAttention3, FlashAttention4
from harness.adapters.flashinfer import FlashInferPagedFa3, FlashInferSwaMerge
from harness.adapters.sglang.flashinfer_module import make_classes
from harness.emulation.flash_attention import EmulatedFlashAttention
from harness.emulation.flashinfer import EmulatedFlashInfer
from harness.emulation.hooks import EmulatedCudaError, Hooks
from harness.emulation.packing import pack_bits, pack_masks, unpack_bits
from references.golden import golden_attention


def worst(case, adapter, change=lambda plan: plan):
    batch = build_batch(case)
    golden = golden_attention(case, batch.data).out
    output = adapter.run(change(adapter.plan(batch)), batch)
    return (output.out.double() - golden).abs().nan_to_num(torch.inf).max().item()


@pytest.mark.parametrize(("extend", "right"), [(5, True), (32, True), (33, True), (34, False), (200, False)])
def test_a_window_given_only_at_run_is_ignored_by_the_mask(extend, right):
    """A row further than L from the first key of its query tile of 32 rows sees too much: row 32 begins a tile."""
    adapter = FlashInferSwaMerge(EmulatedFlashInfer())
    case = AttentionCase(requests=[(0, extend)], window_left=31)

    def planned_without(plan):
        return dataclasses.replace(
            plan, ragged=dataclasses.replace(plan.ragged, window_left=-1, run_window_left=case.window_left)
        )

    assert worst(case, adapter) < 2e-2
    assert (worst(case, adapter, planned_without) < 2e-2) is right


def test_fa3_refuses_a_custom_mask_and_an_empty_kv():
    library = EmulatedFlashInfer()
    q = torch.zeros((2, 2, 64), dtype=torch.bfloat16)
    pool = torch.zeros((3, 1, 2, 64), dtype=torch.bfloat16)
    wrapper = library.paged_wrapper(torch.zeros(8, dtype=torch.uint8), "NHD", "fa3")
    ints = [torch.tensor(values, dtype=torch.int32) for values in ([0, 2], [0, 3], [0, 1, 2], [1])]
    plan = {"q_data_type": torch.bfloat16, "causal": True}
    wrapper.plan(*ints, 2, 2, 64, 1, custom_mask=torch.ones(6, dtype=torch.bool), **plan)
    with pytest.raises(EmulatedCudaError, match="not supported"):
        wrapper.run(q, (pool, pool))
    empty = [torch.tensor(values, dtype=torch.int32) for values in ([0, 2], [0, 0], [], [0])]
    wrapper.plan(*empty, 2, 2, 64, 1, **plan)
    with pytest.raises(EmulatedCudaError, match="no keys"):
        wrapper.run(q, (pool, pool))
    reason = FlashInferPagedFa3(library).capabilities.unsupported(AttentionCase(requests=[(0, 0), (3, 2)]))
    assert reason is not None


@pytest.mark.parametrize(("version", "sentinel"), [("0.6.18.post1", True), ("0.7.0", False)])
def test_rows_without_a_key_by_version(version, sentinel):
    wrapper = EmulatedFlashInfer(version).ragged_wrapper(torch.zeros(8, dtype=torch.uint8), "NHD", "fa2")
    q = torch.randn((3, 2, 64)).to(torch.bfloat16)
    wrapper.plan(
        torch.tensor([0, 3]), torch.tensor([0, 2]), 2, 2, 64, causal=True, q_data_type=torch.bfloat16
    )  # bottom-right: the first row stands before the first key
    v = torch.full((2, 2, 64), 3.0, dtype=torch.bfloat16)
    out, lse = wrapper.run(q, q[:2], v, return_lse=True)
    if sentinel:
        assert lse[0].max() < -4.9e4
        assert torch.isfinite(lse[0]).all()
    else:
        assert (out[0] == 0).all()
        assert (lse[0] == -torch.inf).all()
    assert torch.isfinite(lse[1:]).all()


def test_merge_state_is_log2_and_ignores_an_empty_side():
    library = EmulatedFlashInfer()
    ones, threes = torch.ones((1, 1, 4)), torch.full((1, 1, 4), 3.0)
    out, lse = library.merge_state(ones, torch.tensor([[1.0]]), threes, torch.tensor([[1.0]]))
    assert torch.allclose(out, torch.full((1, 1, 4), 2.0))
    assert lse.item() == pytest.approx(2.0)  # log2(2 + 2)
    out, lse = library.merge_state(ones, torch.tensor([[1.0]]), threes, torch.tensor([[-5e4]]))
    assert torch.equal(out, ones)
    assert lse.item() == 1.0


@pytest.mark.parametrize(
    ("kind", "backend", "empty"),
    [(FlashAttention2, "fa2", torch.inf), (FlashAttention3, "fa3", -torch.inf), (FlashAttention4, "fa4", -torch.inf)],
)
def test_flash_attention_rows_without_a_key(kind, backend, empty):
    adapter = kind(EmulatedFlashAttention(backend))
    batch = build_batch(AttentionCase(requests=[(0, 3), (5, 2)]))
    plan = adapter.plan(batch)
    output = adapter.run(dataclasses.replace(plan, seqused_k=torch.tensor([0, 7], dtype=torch.int32)), batch)
    assert (output.out[:3] == 0).all()
    assert (output.lse[:3] == empty).all()
    assert torch.isfinite(output.out[3:]).all()


def test_an_empty_row_with_a_sink_has_the_sink_for_lse():
    adapter = FlashAttention4(EmulatedFlashAttention("fa4"))
    batch = build_batch(AttentionCase(requests=[(0, 3)], sinks=True))
    plan = adapter.plan(batch)
    output = adapter.run(dataclasses.replace(plan, seqused_k=torch.tensor([0], dtype=torch.int32)), batch)
    assert (output.out == 0).all()
    assert torch.allclose(output.lse, batch.data.sinks.expand(3, -1))


def test_host_maxima_bound_a_launch():
    adapter = FlashAttention3(EmulatedFlashAttention("fa3"))
    case = AttentionCase(requests=[(60, 4), (3, 4)])
    batch = build_batch(case)
    short = dataclasses.replace(adapter.plan(batch), max_seqlen_q=3)
    assert torch.isnan(adapter.run(short, batch).out[3]).all()  # never written
    assert worst(case, adapter, lambda plan: dataclasses.replace(plan, max_seqlen_k=32)) > 0.1


def test_a_page_table_too_narrow_is_an_illegal_access():
    adapter = FlashAttention3(EmulatedFlashAttention("fa3"))
    batch = build_batch(AttentionCase(requests=[(60, 4)]))
    plan = adapter.plan(batch)
    with pytest.raises(EmulatedCudaError, match="page table"):
        adapter.run(dataclasses.replace(plan, page_table=plan.page_table[:, :2]), batch)


def test_packed_masks_start_every_request_on_a_byte():
    mask = torch.tensor([True] * 3 + [False, True] * 5)
    packed, indptr = pack_masks(mask, (0, 1, 3), (3, 5))
    assert packed is not None
    assert indptr is not None
    assert indptr.tolist() == [0, 1, 3]
    assert packed.tolist() == [0b111, 0b10101010, 0b10]
    bits = torch.rand(37) < 0.5
    assert torch.equal(unpack_bits(pack_bits(bits))[:37], bits)


# -- hooks ---------------------------------------------------------------------------------------
CASE = AttentionCase(requests=[(300, 4), (5, 3)], window_left=31, logits_soft_cap=2.0, sinks=True, page_size=16)


def _set(hooks, name, function):
    setattr(hooks, name, function)
    assert hooks.overrides(name)
    return hooks


CHANGES = {
    "window": lambda request, left, right: (-1, right),
    "kv_len": lambda request, length: length - 1,
    "query_position": lambda request, positions: positions - 1,
    "key_range": lambda request, low, high: (low + 8, high),
    "split": lambda request, bounds: bounds[1:],
    "scale": lambda request, value: value * math.log(2),
    "soft_cap": lambda request, value: 0.0,
    "page_lookup": lambda request, logical, physical: physical.flip(0),
    "slot": lambda request, operand, positions, slots: slots ^ 1 if operand == "v" else slots,
    "load": lambda request, operand, rows: torch.zeros_like(rows) if operand == "q" else rows,
    "row_offset": lambda request, start: 0,
    "sink": lambda request, sinks, top, term: torch.zeros_like(term),
    "mask": lambda tile, visible: visible & (tile.positions % 3 > 0),
    "score": lambda tile, raw, scores: scores.masked_fill(raw > 8, -torch.inf),
    "probability": lambda tile, weights: weights.clamp(max=0.5),
    "row_sum": lambda tile, total: total * 2,
    "head_map": lambda launch, heads: heads.flip(0),
    "output": lambda launch, values: values.roll(1, 0),
}


@pytest.mark.parametrize("name", CHANGES)
def test_every_hook_of_the_kernel_changes_the_answer(name):
    case = CASE.replace(execution=Execution(num_splits=2), window_left=200) if name == "split" else CASE
    hooks = _set(Hooks(), name, CHANGES[name])
    adapter = FlashAttention4(EmulatedFlashAttention("fa4", hooks))
    right = FlashAttention4(EmulatedFlashAttention("fa4"))
    if name == "split":
        case = case.replace(sinks=False)
        adapter, right = (
            FlashAttention3(EmulatedFlashAttention("fa3", hooks)),
            FlashAttention3(EmulatedFlashAttention("fa3")),
        )
    assert worst(case, right) < 2e-2
    assert worst(case, adapter) > 5e-2


def test_merge_and_lse_hooks():
    case = AttentionCase(requests=[(300, 4), (5, 3)], window_left=31)
    swapped = Hooks(merge=lambda where, weights: weights.flip(0) if where == "merge_state" else weights)
    assert worst(case, FlashInferSwaMerge(EmulatedFlashInfer(hooks=swapped))) > 5e-2
    natural = Hooks(lse=lambda launch, values: values * math.log(2))
    assert worst(case, FlashInferSwaMerge(EmulatedFlashInfer(hooks=natural))) > 2e-2


def test_plan_state_hook_can_keep_an_old_plan():
    def stale_window(kernel, previous, new):
        return new if previous is None else dataclasses.replace(new, window_left=previous.window_left)

    adapter = FlashInferSwaMerge(EmulatedFlashInfer(hooks=Hooks(plan_state=stale_window)))
    first, second = AttentionCase(requests=[(0, 70)], window_left=4), AttentionCase(requests=[(0, 70)], window_left=9)
    assert worst(first, adapter) < 2e-2
    assert worst(second, adapter) > 5e-2


def test_mask_packing_hook():
    case = AttentionCase(requests=[(40, 5), (100, 3)], window_left=31)
    opened = Hooks(mask_packing=lambda launch, packed, indptr: (packed | 0xFF, indptr))
    assert worst(case, FlashInferSwaMerge(EmulatedFlashInfer(hooks=opened))) > 5e-2


def test_graph_copy_hook_can_leave_capture_values_in_place():
    case = AttentionCase(
        requests=[(60, 4), (5, 4)],
        mode=Mode.DRAFT_EXTEND_V2,
        execution=Execution(capture_requests=((10, 4), (70, 4))),
    )
    stale = Hooks(graph_copy=lambda name, static, live: static if name == "seqused_k" else live)
    assert worst(case, FlashAttention3(EmulatedFlashAttention("fa3"))) < 2e-2
    assert worst(case, FlashAttention3(EmulatedFlashAttention("fa3", stale))) > 5e-2


def test_slots_outside_the_pool_are_an_illegal_access():
    wild = Hooks(slot=lambda request, operand, positions, slots: slots + 10**6)
    with pytest.raises(EmulatedCudaError, match="slot outside"):
        worst(CASE, FlashAttention4(EmulatedFlashAttention("fa4", wild)))


@pytest.mark.parametrize(("use_tensor_cores", "expected"), [(True, 0.0), (False, 1.0)])
def test_a_decode_without_tensor_cores_fills_after_the_scale(use_tensor_cores: bool, expected: float) -> None:
    """Scores of -5120: below -5e4 / 16, what a masked key of prefill.cuh gets, above -5e4 / log2(e) of decode.cuh."""
    wrapper = make_classes(EmulatedFlashInfer())["BatchDecodeWithPagedKVCacheWrapper"](
        torch.zeros(1 << 20, dtype=torch.uint8), use_tensor_cores=use_tensor_cores
    )
    indptr, indices, last = (torch.tensor(each, dtype=torch.int32) for each in ([0, 3], [1, 2, 3], [1]))
    bf16 = torch.bfloat16
    wrapper.begin_forward(indptr, indices, last, 1, 1, 256, 1, data_type=bf16, q_data_type=bf16)
    q, k, v = torch.ones(1, 1, 256), torch.full((5, 1, 256), -320.0), torch.ones(5, 1, 256)
    out = wrapper.forward(q.to(bf16), (k.to(bf16), v.to(bf16)), sm_scale=256**-0.5)
    assert torch.equal(out, torch.full((1, 1, 256), expected, dtype=bf16))
