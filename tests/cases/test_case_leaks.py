"""Nothing of one case is left for the next: memory that is used again, and indices that are kept."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cases import AttentionCase, Request
from cases.batch import AttentionBatch, build_batch
from cases.schema import Execution, KvLayout, PageOrder, Poison

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
CASES = (
    AttentionCase(requests=(Request(40, 5), Request(0, 9)), poison=Poison.NAN),
    AttentionCase(requests=(Request(40, 5), Request(0, 9)), poison=Poison.ZERO, page_order=PageOrder.REVERSED),
    AttentionCase(requests=(Request(33, 4), Request(7, 1), Request(64, 2)), kv_layout=KvLayout.HND, page_size=8),
    AttentionCase(requests=(Request(16, 8),), kv_dtype="float8_e4m3fn", poison=Poison.FINITE),
)


def content(batch: AttentionBatch) -> dict[str, torch.Tensor]:
    """Every tensor of a batch, as bytes where a comparison of NaN would say nothing."""
    tensors = {name: getattr(batch, name) for name in ("k_pool", "v_pool", "page_table", "qo_indptr", "prefix_lens")}
    tensors |= {name: getattr(batch, name) for name in ("extend_lens", "new_slots", "new_keys", "q", "k_new", "v_new")}
    return {name: t.contiguous().view(torch.uint8).cpu().clone() for name, t in tensors.items()}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(a[name], b[name]) for name in a)


def overwrite(batch: AttentionBatch) -> None:
    """Every byte that belongs to a batch becomes 0xFF, which floats read as NaN and integers as -1."""
    tensors = [batch.k_pool, batch.v_pool, batch.page_table, batch.qo_indptr, batch.prefix_lens, batch.extend_lens]
    for tensor in [*tensors, batch.new_slots, batch.new_keys, batch.data.q, batch.data.k, batch.data.v]:
        tensor.view(torch.uint8).fill_(0xFF)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_batch_is_the_same_after_one_that_was_overwritten(case: AttentionCase, device: str) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("not run: needs a CUDA GPU")
    first = build_batch(case, device)
    before = content(first)
    overwrite(first)
    assert not same(content(first), before), "the overwriting shows, or the test sees nothing"
    assert same(content(build_batch(case, device)), before), "while the first is still held"
    del first
    assert same(content(build_batch(case, device)), before), "in the memory that it left"


@pytest.mark.parametrize("device", DEVICES)
def test_what_another_case_left_does_not_show(device: str) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("not run: needs a CUDA GPU")
    fresh: list[dict[str, Any]] = [content(build_batch(case, device)) for case in CASES]
    for left in CASES:
        for case, expected in zip(CASES, fresh, strict=True):
            overwrite(build_batch(left, device))
            assert same(content(build_batch(case, device)), expected), (left.name, case.name)


@pytest.mark.parametrize("name", ["flashinfer-swa-merge@emulated", "flash-attn-3@emulated"])
def test_an_adapter_kept_between_cases_answers_as_a_new_one(name: str) -> None:
    # Workspaces, wrappers and captured graphs stay; a dirty workspace in between fills scratch memory with NaN.
    from harness.adapters.registry import load_adapter

    cases = [case for case in CASES if load_adapter(name).capabilities.unsupported(case) is None]
    dirty = CASES[0].replace(execution=Execution(workspace="dirty"))
    kept = load_adapter(name)
    assert cases

    def answer(adapter: Any, case: AttentionCase) -> torch.Tensor:
        batch = build_batch(case, poison=Poison.FINITE)
        out: torch.Tensor = adapter.run(adapter.plan(batch), batch).out
        return out

    for case in [*cases, *reversed(cases)]:
        if kept.capabilities.unsupported(dirty) is None:
            answer(kept, dirty)
        assert torch.equal(answer(kept, case), answer(load_adapter(name), case)), case.name
