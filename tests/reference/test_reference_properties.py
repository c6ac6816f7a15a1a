"""What any right attention satisfies, asked of golden attention on drawn cases.

None of these needs a second implementation: each says how the answer must change when the question
does. Golden attention computes in fp64 on the inputs given, so 1e-12 is a few hundred roundings.
"""

from __future__ import annotations

import dataclasses
import itertools
import math

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from small_cases import close, data_of, doubled, reproducible, small_cases
from torch import Tensor

from cases.batch import build_batch
from cases.ragged import indptr, kv_rows, query_rows
from cases.recipes import LogicalData
from cases.schema import AttentionCase, PageOrder, Poison
from references import golden, tiles
from references.golden import golden_attention
from references.visibility import visible_count, visible_interval


def same(a: golden.GoldenOutput, b: golden.GoldenOutput, atol: float = 1e-12) -> None:
    close(a.out, b.out, atol)
    close(a.lse, b.lse, atol)


def starts(lengths: list[int]) -> list[int]:
    return indptr(lengths).tolist()


def request_data(case: AttentionCase, data: LogicalData, i: int) -> LogicalData:
    """The data of request i alone."""
    q, kv = starts([r.extend_len for r in case.requests]), starts([r.kv_len for r in case.requests])
    return LogicalData(data.q[q[i] : q[i + 1]], data.k[kv[i] : kv[i + 1]], data.v[kv[i] : kv[i + 1]], data.sinks)


# -- windows and chunks ------------------------------------------------------------------------
@reproducible
@given(small_cases(), st.integers(0, 3))
def test_a_window_at_or_above_the_sequence_is_no_window(case: AttentionCase, more: int) -> None:
    data = data_of(case)
    longest = case.max_kv_len - 1  # what the last query looks back to
    same(
        golden_attention(case.replace(window_left=longest + more), data),
        golden_attention(case.replace(window_left=None), data),
    )


@reproducible
@given(small_cases(causal=True), st.data())
def test_extend_equals_chunked_extend(case: AttentionCase, draw: st.DataObject) -> None:
    data, whole = data_of(case), golden_attention(case, data_of(case))
    i = draw.draw(st.sampled_from([i for i, r in enumerate(case.requests) if r.extend_len]))
    prefix, extend = case.requests[i]
    one = request_data(case, data, i)
    cuts = sorted(draw.draw(st.sets(st.integers(0, extend), max_size=3)) | {0, extend})
    parts = []
    for a, b in itertools.pairwise(cuts):
        chunk = case.replace(requests=((prefix + a, b - a),))
        seen = LogicalData(one.q[a:b], one.k[: prefix + b], one.v[: prefix + b], one.sinks)
        parts.append(golden_attention(chunk, seen))
    q = starts([r.extend_len for r in case.requests])
    close(torch.cat([p.out for p in parts]), whole.out[q[i] : q[i + 1]])
    close(torch.cat([p.lse for p in parts]), whole.lse[q[i] : q[i + 1]])


@reproducible
@given(small_cases(causal=True))
def test_extend_equals_repeated_decode(case: AttentionCase) -> None:
    data = data_of(case)
    steps = []
    for i, request in enumerate(case.requests):
        one = request_data(case, data, i)
        for j in range(request.extend_len):
            position = request.prefix_len + j
            decode = case.replace(requests=((position, 1),))
            seen = LogicalData(one.q[j : j + 1], one.k[: position + 1], one.v[: position + 1], one.sinks)
            steps.append(golden_attention(decode, seen))
    whole = golden_attention(case, data)
    close(torch.cat([s.out for s in steps]), whole.out)
    close(torch.cat([s.lse for s in steps]), whole.lse)


@reproducible
@given(small_cases(), st.integers(1, 400))
def test_the_chunk_size_changes_nothing(case: AttentionCase, scores: int) -> None:
    data = data_of(case)
    whole = golden_attention(case, data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(golden, "CHUNK_SCORES", scores)
        same(golden_attention(case, data), whole)


@reproducible
@given(small_cases(), st.integers(1, 40), st.integers(1, 4000))
def test_computing_as_on_a_gpu_changes_nothing(case: AttentionCase, split: int, scores: int) -> None:
    data = data_of(case)
    whole = golden_attention(case, data, moments=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(golden, "CHUNK_SCORES", scores)
        patch.setattr(golden, "on_gpu", lambda device: True)
        patch.setattr(golden, "SPLIT_KEYS", split)
        patch.setattr(tiles, "SPLIT_FROM", 1)
        patch.setitem(tiles.OVERHEAD_SCORES, "cpu", tiles.OVERHEAD_SCORES["cuda"])
        parts = golden_attention(case, data, moments=True)
    same(parts, whole)
    assert parts.moments is not None
    assert whole.moments is not None
    close(parts.moments.leg, whole.moments.leg)
    for name in ("mass", "p2", "p_max", "pv2", "p2v", "p2v2"):
        torch.testing.assert_close(
            getattr(parts.moments, name).double(), getattr(whole.moments, name).double(), rtol=1e-4, atol=1e-6
        )


# -- permutations ------------------------------------------------------------------------------
@reproducible
@given(small_cases(), st.randoms(use_true_random=False))
def test_permuting_the_batch_permutes_the_output(case: AttentionCase, random) -> None:  # type: ignore[no-untyped-def]
    order = list(range(case.num_requests))
    random.shuffle(order)
    data, whole = data_of(case), golden_attention(case, data_of(case))
    parts = [request_data(case, data, i) for i in order]
    moved = LogicalData(
        torch.cat([p.q for p in parts]), torch.cat([p.k for p in parts]), torch.cat([p.v for p in parts]), data.sinks
    )
    got = golden_attention(case.replace(requests=tuple(case.requests[i] for i in order)), moved)
    q = starts([r.extend_len for r in case.requests])
    rows = torch.cat([torch.arange(q[i], q[i + 1]) for i in order])
    close(got.out, whole.out[rows])
    close(got.lse, whole.lse[rows])


def gathered(case: AttentionCase, poison: Poison) -> LogicalData:
    """k and v as a kernel finds them: written to pages, read back through the page table."""
    batch = build_batch(case, poison=poison)
    batch.write_new_rows()
    slots = batch.paging.slots(kv_rows(case, "cpu"))
    k = batch.k_pool.view(-1, case.num_kv_heads, case.head_dim_qk)[slots]
    v = batch.v_pool.view(-1, case.num_kv_heads, case.head_dim_vo)[slots]
    return LogicalData(batch.q, k, v, batch.data.sinks)


@reproducible
@given(small_cases(), st.sampled_from(PageOrder), st.sampled_from((1, 2, 5, 16)))
def test_permuting_the_pages_changes_nothing(case: AttentionCase, order: PageOrder, page_size: int) -> None:
    paged = gathered(case.replace(page_order=order, page_size=page_size), Poison.FINITE)
    same(golden_attention(case, paged), golden_attention(case, data_of(case)), atol=0.0)


@reproducible
@given(small_cases(), st.sampled_from(Poison))
def test_poisoning_unused_slots_anew_changes_nothing(case: AttentionCase, poison: Poison) -> None:
    same(golden_attention(case, gathered(case, poison)), golden_attention(case, data_of(case)), atol=0.0)


@reproducible
@given(small_cases(), st.randoms(use_true_random=False))
def test_permuting_the_kv_heads_with_their_groups_permutes_the_output(case: AttentionCase, random) -> None:  # type: ignore[no-untyped-def]
    order = list(range(case.num_kv_heads))
    random.shuffle(order)
    q_heads = torch.arange(case.num_qo_heads).view(case.num_kv_heads, -1)[order].flatten()
    data, whole = data_of(case), golden_attention(case, data_of(case))
    sinks = None if data.sinks is None else data.sinks[q_heads]
    got = golden_attention(case, LogicalData(data.q[:, q_heads], data.k[:, order], data.v[:, order], sinks))
    close(got.out, whole.out[:, q_heads])
    close(got.lse, whole.lse[:, q_heads])


@reproducible
@given(small_cases())
def test_gqa_equals_mha_with_each_kv_head_repeated(case: AttentionCase) -> None:
    data = data_of(case)
    repeated = LogicalData(
        data.q,
        data.k.repeat_interleave(case.group_size, dim=1),
        data.v.repeat_interleave(case.group_size, dim=1),
        data.sinks,
    )
    mha = case.replace(num_kv_heads=case.num_qo_heads)
    same(golden_attention(mha, repeated), golden_attention(case, data))


# -- scores ------------------------------------------------------------------------------------
@reproducible
@given(small_cases(logits_soft_cap=None, sinks=False))
def test_shifting_all_scores_changes_nothing_but_the_lse(case: AttentionCase) -> None:
    data = doubled(data_of(case))
    shift = torch.linspace(-1, 2, case.head_dim_qk, dtype=torch.float64)
    moved = golden_attention(case, dataclasses.replace(data, k=data.k + shift))
    whole = golden_attention(case, data)
    close(moved.out, whole.out)
    close(moved.lse, whole.lse + case.scale * (data.q @ shift))


@reproducible
@given(small_cases(), st.sampled_from((0.25, 4.0)))
def test_a_scale_moved_from_sm_scale_into_q_changes_nothing(case: AttentionCase, factor: float) -> None:
    data = doubled(data_of(case))
    whole = golden_attention(case, data)
    same(
        golden_attention(case.replace(sm_scale=case.scale / factor), dataclasses.replace(data, q=data.q * factor)),
        whole,
    )


@reproducible
@given(small_cases(causal=True), st.sampled_from((0.5, 0.03125)), st.sampled_from((2.0, 0.125)))
def test_kv_scales_multiply_k_and_v(case: AttentionCase, k_scale: float, v_scale: float) -> None:
    scaled = case.replace(kv_dtype="float8_e4m3fn", k_scale=k_scale, v_scale=v_scale)
    data = doubled(data_of(scaled))
    plain = dataclasses.replace(data, k=data.k * k_scale, v=data.v * v_scale)
    same(golden_attention(scaled, data), golden_attention(case, plain))


@reproducible
@given(small_cases(logits_soft_cap=None))
def test_a_softcap_far_above_the_scores_is_none_and_a_near_one_is_not(case: AttentionCase) -> None:
    data, whole = data_of(case), golden_attention(case, data_of(case))
    # s - cap tanh(s / cap) is at most |s|^3 / (3 cap^2); scores stay below 100.
    same(golden_attention(case.replace(logits_soft_cap=1e10), data), whole, atol=1e-12)
    assume(int(visible_count(case).max()) > 1)
    near = golden_attention(case.replace(logits_soft_cap=0.05), data)
    assert float((near.lse - whole.lse).abs().max()) > 1e-6


@reproducible
@given(small_cases(logits_soft_cap=None, sinks=False))
def test_equal_scores_count_the_visible_keys(case: AttentionCase) -> None:
    """q = 0: every visible key weighs 1/n, so exp(lse) is n and out is the mean of positions seen."""
    data = doubled(data_of(case))
    position = kv_rows(case, "cpu").position.double()
    v = position[:, None, None].expand_as(data.v)
    got = golden_attention(case, LogicalData(torch.zeros_like(data.q), data.k, v, None))
    rows = query_rows(case, "cpu")
    kv_lens = torch.tensor([r.kv_len for r in case.requests])[rows.request]
    first = (rows.position - (10**6 if case.window_left is None else case.window_left)).clamp(min=0)[:, None].double()
    last = (rows.position + 1 if case.causal else kv_lens)[:, None].double()
    close(got.lse.exp(), (last - first).expand_as(got.lse), atol=1e-11)
    close(got.out, ((first + last - 1) / 2)[:, :, None].expand_as(got.out), atol=1e-11)


# -- keys --------------------------------------------------------------------------------------
@reproducible
@given(small_cases(), st.data())
def test_a_key_changes_the_rows_that_see_it_and_no_other(case: AttentionCase, draw: st.DataObject) -> None:
    data, whole = data_of(case), golden_attention(case, data_of(case))
    at = draw.draw(st.integers(0, case.total_kv - 1))
    keys, queries = kv_rows(case, "cpu"), query_rows(case, "cpu")
    k, v = data.k.clone(), data.v.clone()
    k[at] += 1.0
    v[at] += 3.0
    got = golden_attention(case, LogicalData(data.q, k, v, data.sinks))
    age = queries.position - keys.position[at]
    sees = (queries.request == keys.request[at]) & ((age >= 0) | (not case.causal))
    if case.window_left is not None:
        sees &= age <= case.window_left
    changed = (got.out != whole.out).flatten(1).any(1)
    assert torch.equal(changed, sees)


@reproducible
@given(small_cases(), st.data())
def test_the_output_is_linear_in_v_and_within_the_visible_values(case: AttentionCase, draw: st.DataObject) -> None:
    data = doubled(data_of(case))
    whole = golden_attention(case, data)
    other = data.v.flip(0) * 1.5
    sum_of_both = golden_attention(case, dataclasses.replace(data, v=2 * data.v + other)).out
    close(sum_of_both, 2 * whole.out + golden_attention(case, dataclasses.replace(data, v=other)).out)
    assert float(whole.out.abs().max()) <= float(data.v.abs().max()) + 1e-12
    i = draw.draw(st.integers(0, case.num_requests - 1))
    one = request_data(case, data, i)
    assume(one.q.shape[0] > 0)
    alone = golden_attention(case.replace(requests=(case.requests[i],)), one)
    q = starts([r.extend_len for r in case.requests])
    close(alone.out, whole.out[q[i] : q[i + 1]])


def states_of(case: AttentionCase, data: LogicalData, first: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
    """(out, lse) of every query row over its own keys first..last alone, the empty state where there are none.

    Each row becomes one non-causal decode over just these keys.
    """
    kv = torch.tensor(starts([r.kv_len for r in case.requests]))[query_rows(case, "cpu").request]
    out = torch.zeros((case.total_q, case.num_qo_heads, case.head_dim_vo), dtype=torch.float64)
    lse = torch.full((case.total_q, case.num_qo_heads), -torch.inf, dtype=torch.float64)
    for row, (a, b, start) in enumerate(zip(first.tolist(), last.tolist(), kv.tolist(), strict=True)):
        if a < b:
            keys = slice(start + a, start + b)
            alone = case.replace(requests=((b - a - 1, 1),), causal=False, window_left=None, sinks=False)
            got = golden_attention(alone, LogicalData(data.q[row : row + 1], data.k[keys], data.v[keys], None))
            out[row], lse[row] = got.out[0], got.lse[0]
    return out, lse


def merge(base: float, a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Merge two attention states whose lse is in logarithms to `base`."""
    top = torch.maximum(a[1], b[1])
    weight_a, weight_b = torch.pow(base, a[1] - top), torch.pow(base, b[1] - top)
    total = weight_a + weight_b
    out = (a[0] * weight_a[..., None] + b[0] * weight_b[..., None]) / total[..., None]
    return out, top + torch.log(total) / math.log(base)


@reproducible
@given(small_cases(sinks=False), st.floats(0, 1), st.sampled_from((math.e, 2.0)))
def test_splitting_the_keys_anywhere_and_merging_the_states_equals_one_pass(
    case: AttentionCase, fraction: float, base: float
) -> None:
    data, whole = data_of(case), golden_attention(case, data_of(case))
    first, last = visible_interval(case, query_rows(case, "cpu"))
    middle = first + ((last - first) * fraction).long()
    legs = [states_of(case, data, first, middle), states_of(case, data, middle, last)]
    out, lse = merge(base, *((o, s / math.log(base)) for o, s in legs))
    close(out, whole.out)
    close(lse * math.log(base), whole.lse)


# -- sinks -------------------------------------------------------------------------------------
@reproducible
@given(small_cases(sinks=True))
def test_a_sink_of_minus_infinity_is_no_sink(case: AttentionCase) -> None:
    data = data_of(case)
    nothing = torch.full((case.num_qo_heads,), -torch.inf)
    same(
        golden_attention(case, dataclasses.replace(data, sinks=nothing)),
        golden_attention(case.replace(sinks=False), dataclasses.replace(data, sinks=None)),
    )


@reproducible
@given(small_cases(sinks=True, logits_soft_cap=None, window_left=None))
def test_a_sink_is_a_key_of_that_score_and_no_value(case: AttentionCase) -> None:
    """One more key at the start, whose score is the sink by way of one more dimension, and whose V is 0."""
    data = doubled(data_of(case))
    assert data.sinks is not None
    q = torch.cat([data.q, (data.sinks.double() / case.scale).expand(case.total_q, -1)[..., None]], -1)
    parts = [request_data(case, data, i) for i in range(case.num_requests)]
    sink_key = torch.zeros(1, case.num_kv_heads, case.head_dim_qk + 1, dtype=torch.float64)
    sink_key[..., -1] = 1
    k = torch.cat([torch.cat([sink_key, torch.nn.functional.pad(p.k, (0, 1))]) for p in parts])
    v = torch.cat([torch.cat([torch.zeros_like(data.v[:1]), p.v]) for p in parts])
    longer = case.replace(
        requests=tuple((r.prefix_len + 1, r.extend_len) for r in case.requests),
        head_dim_qk=case.head_dim_qk + 1,
        sm_scale=case.scale,
        sinks=False,
    )
    same(golden_attention(longer, LogicalData(q, k, v, None)), golden_attention(case, data))


# -- devices -----------------------------------------------------------------------------------
@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="not run: needs a CUDA GPU")
@reproducible
@given(small_cases())
def test_fp64_on_the_cpu_and_on_the_gpu_agree(case: AttentionCase) -> None:
    data = data_of(case)
    sinks = None if data.sinks is None else data.sinks.cuda()
    there = golden_attention(case, LogicalData(data.q.cuda(), data.k.cuda(), data.v.cuda(), sinks))
    here = golden_attention(case, data)
    close(there.out.cpu(), here.out, atol=1e-12)
    close(there.lse.cpu(), here.lse, atol=1e-12)
