"""The FlashInfer adapter's parts that need no vLLM: its cache, the order of requests, the wrappers, its limits."""

import pytest
import torch

from cases.batch import build_batch
from cases.schema import AttentionCase, Execution, KvLayout, Mode, Request
from harness.adapters.vllm import entries
from harness.adapters.vllm.adapter import FLASHINFER_CAPABILITIES
from harness.adapters.vllm.caches import interleaved
from harness.adapters.vllm.flashinfer_module import fast_decode_plan, lengths, make_classes, make_modules
from harness.adapters.vllm.order import Order, order_for
from harness.emulation.flashinfer import EmulatedFlashInfer


def case(*requests, **fields):
    return AttentionCase(requests=tuple(Request(*r) for r in requests), **{"page_size": 16, **fields})


# -- the cache -------------------------------------------------------------------------------------
@pytest.mark.parametrize("layout", list(KvLayout))
def test_both_pools_lie_in_one_cache(layout):
    batch = build_batch(case((20, 3), (5, 2), kv_layout=layout))
    kept = batch.k_pool.clone(), batch.v_pool.clone()
    cache = interleaved(batch)
    assert cache.shape == (batch.paging.num_pages, 2, 16, batch.case.num_kv_heads, batch.case.head_dim_qk)
    assert cache.transpose(2, 3).is_contiguous() if layout is KvLayout.HND else cache.is_contiguous()
    for pool, was in zip((batch.k_pool, batch.v_pool), kept, strict=True):
        assert torch.equal(pool.nan_to_num(7.0), was.nan_to_num(7.0))
    batch.write_new_rows()
    by_token = cache[:, 0][batch.new_slots // 16, batch.new_slots % 16]
    assert torch.equal(by_token, batch.k_new)


def test_a_batch_planned_again_keeps_its_cache():
    batch = build_batch(case((20, 3)))
    assert interleaved(batch) is interleaved(batch)


# -- the order -------------------------------------------------------------------------------------
def test_rows_come_back_to_their_requests():
    order = Order(torch.tensor([1, 0]), torch.tensor([2, 0, 1]))  # two requests of 2 rows and 1
    rows = torch.tensor([[10.0], [11.0], [20.0]])
    assert order.of_rows(rows).flatten().tolist() == [20.0, 10.0, 11.0]
    assert torch.equal(order.undone(order.of_rows(rows)), rows)
    assert order.of_requests([Request(0, 2), Request(9, 1)]) == (Request(9, 1), Request(0, 2))


def test_a_builder_that_does_not_ask_keeps_the_order():
    order = order_for([Request(0, 5), Request(9, 1)], Mode.EXTEND, None, torch.device("cpu"))
    assert order == Order()


# -- the wrappers ----------------------------------------------------------------------------------
PLAN = {
    "num_qo_heads": 2,
    "num_kv_heads": 1,
    "head_dim": 64,
    "page_size": 16,
    "pos_encoding_mode": "NONE",
    "window_left": -1,
    "logits_soft_cap": None,
    "sm_scale": 0.125,
    "q_data_type": torch.float16,
    "kv_data_type": torch.float16,
    "o_data_type": torch.float16,
    "data_type": None,
    "rope_scale": None,
    "rope_theta": None,
    "non_blocking": True,
    "block_tables": None,
    "seq_lens": None,
    "fixed_split_size": -1,
    "disable_split_kv": False,
}
BUFFERS = ("paged_kv_indptr_buffer", "paged_kv_indices_buffer", "paged_kv_last_page_len_buffer")


def ints(*values):
    return torch.tensor(values, dtype=torch.int32)


def decode_wrapper(buffers=(None, None, None)):
    made = make_classes(EmulatedFlashInfer())["BatchDecodeWithPagedKVCacheWrapper"]
    options = dict(zip(BUFFERS, buffers, strict=True))
    graph = buffers[0] is not None
    return made(torch.zeros(16), "NHD", use_cuda_graph=graph, use_tensor_cores=True, backend="auto", **options)


def run(wrapper, requests=2, scale=1.0):
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(requests, 2, 64, generator=generator, dtype=torch.float16)
    cache = torch.randn(4, 2, 16, 1, 64, generator=generator, dtype=torch.float16)
    out = torch.full_like(q, torch.nan)
    wrapper.run(q, cache, k_scale=scale, v_scale=1.0, out=out, kv_cache_sf=None)
    return out, q, cache


def test_a_decode_reads_its_pages():
    wrapper = decode_wrapper()
    wrapper.plan(indptr=ints(0, 2, 3), indices=ints(3, 1, 2), last_page_len=ints(4, 16), **PLAN)
    out, q, cache = run(wrapper)
    keys = cache[[3, 1], 0].flatten(0, 1)[:20, 0].float()
    values = cache[[3, 1], 1].flatten(0, 1)[:20, 0].float()
    expected = (q[0].float() @ keys.T * 0.125).softmax(-1) @ values
    assert (out[0] - expected).abs().max() < 2e-3
    assert (wrapper._window_left, wrapper._logits_soft_cap, wrapper._sm_scale) == (-1, 0.0, 0.125)


def test_a_fast_plan_leaves_the_buffers_to_vllm():
    """A graph reads them where they lie: lengths that the host counted otherwise are a fault of the caller."""
    buffers = (ints(0, 0, 0), torch.zeros(8, dtype=torch.int32), ints(0, 0))
    wrapper = decode_wrapper(buffers)
    wrapper.plan(indptr=ints(0, 1, 2), indices=ints(1, 2), last_page_len=ints(3, 4), **PLAN)
    assert buffers[0].tolist() == [0, 1, 2]
    run(wrapper)
    fast_decode_plan(wrapper, indptr=ints(0, 2, 3), indices=ints(1, 2, 3), last_page_len=ints(5, 6), page_size=16)
    with pytest.raises(RuntimeError, match=r"planned for lengths \[21, 6\]; its buffers say \[3, 4\]"):
        run(wrapper)
    buffers[0].copy_(ints(0, 2, 3))
    buffers[2].copy_(ints(5, 6))
    out, _, _ = run(wrapper)
    assert out.isfinite().all()


def test_a_graph_keeps_its_batch_size():
    wrapper = decode_wrapper((ints(0, 0, 0), torch.zeros(2, dtype=torch.int32), ints(0, 0)))
    with pytest.raises(ValueError, match="batch size should be fixed"):
        wrapper.plan(indptr=ints(0, 1), indices=ints(1), last_page_len=ints(3), **PLAN)
    with pytest.raises(ValueError, match="size of indices"):
        wrapper.plan(indptr=ints(0, 2, 3), indices=ints(1, 2, 3), last_page_len=ints(3, 3), **PLAN)


def test_a_padded_request_has_no_keys():
    assert lengths(ints(0, 2, 2), ints(4, 0), 16).tolist() == [20, 0]


@pytest.mark.parametrize(
    "changed", [{"pos_encoding_mode": "ROPE_LLAMA"}, {"o_data_type": torch.float32}, {"fixed_split_size": 8}]
)
def test_what_would_be_dropped_is_refused(changed):
    with pytest.raises(RuntimeError, match="emulated"):
        decode_wrapper().plan(indptr=ints(0, 1), indices=ints(1), last_page_len=ints(3), **{**PLAN, **changed})


def test_cache_scales_are_refused():
    wrapper = decode_wrapper()
    wrapper.plan(indptr=ints(0, 2, 3), indices=ints(3, 1, 2), last_page_len=ints(4, 16), **PLAN)
    with pytest.raises(RuntimeError, match="scales"):
        run(wrapper, scale=0.5)


def test_every_other_name_of_flashinfer_refuses_to_be_called():
    modules = make_modules(EmulatedFlashInfer())
    with pytest.raises(RuntimeError, match="stand-in"):
        modules["flashinfer.prefill"].trtllm_batch_context_with_kv_cache()


# -- what is declared ------------------------------------------------------------------------------
@pytest.mark.parametrize(("page_size", "taken"), [(16, True), (64, True), (8, False), (128, False)])
def test_pages_are_those_of_flashinfer(page_size, taken):
    assert (FLASHINFER_CAPABILITIES.unsupported(case((3, 2), page_size=page_size)) is None) is taken


def test_a_graph_holds_single_tokens_alone():
    def graph(*captured, requests):
        return case(*requests, execution=Execution(capture_requests=tuple(Request(*r) for r in captured)))

    assert FLASHINFER_CAPABILITIES.unsupported(graph((9, 1), requests=[(3, 1)])) is None
    told = FLASHINFER_CAPABILITIES.unsupported(graph((9, 4), requests=[(3, 4)]))
    assert "one new token" in told


def test_sinks_are_refused():
    assert "sinks" in FLASHINFER_CAPABILITIES.unsupported(case((3, 2), sinks=True))


def test_a_module_that_nobody_built_is_told(monkeypatch):
    """Decodes need fa2's module, prefills fa3's on a Hopper."""

    class Library:
        prebuilt = frozenset({entries.module_name("bfloat16", 64, False, False, "fa2")})

    monkeypatch.setattr(entries, "FlashInfer", Library)
    monkeypatch.setattr(entries, "is_hopper", lambda: True)
    narrowed = entries.built_ahead(FLASHINFER_CAPABILITIES)
    kind = {"dtype": "bfloat16", "head_dim_qk": 64, "head_dim_vo": 64}
    assert narrowed.unsupported(case((3, 1), (0, 1), **kind)) is None
    assert "_sm90 is not prebuilt" in narrowed.unsupported(case((3, 1), (7, 2), **kind))
    assert "use_swa_True" in narrowed.unsupported(case((30, 1), window_left=5, **kind))
