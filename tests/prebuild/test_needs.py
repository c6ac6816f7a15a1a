"""Which modules a suite needs, against the names that FlashInfer 0.6.18's own plan() asks for."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cases import AttentionCase, Request
from cases.schema import KvLayout
from cases.suites import load_suite
from harness.adapters.flashinfer_modules import module_name
from harness.prebuild.flashinfer_jit import FlashInferJit
from harness.prebuild.recording import (
    FLASHINFER,
    CallLike,
    PrefillModule,
    flash_attention_4_calls,
    flashinfer_modules,
)

CASE = AttentionCase(requests=(Request(9, 3), Request(0, 2)), window_left=4)


def short(name: str) -> str:
    """bf16:64:swa:cap of a batch-prefill name."""
    if not name.startswith("batch_prefill"):
        return name
    head, tail = name.split("_dtype_kv_")
    dtype = head.removeprefix("batch_prefill_with_kv_cache_dtype_q_")
    same = f"{dtype}_dtype_o_{dtype}_dtype_idx_i32_head_dim_qk_"
    assert tail.startswith(same), name
    dim, rest = tail.removeprefix(same).split("_head_dim_vo_")
    switches = {
        f"{dim}_posenc_0_use_swa_{w}_use_logits_cap_{c}_f16qk_False{suffix}": f"{int(w)}{int(c)}{suffix}"
        for w in (False, True)
        for c in (False, True)
        for suffix in ("", "_sm90")
    }
    return f"{dtype}:{dim}:{switches[rest]}"


def needed(cases: Any, adapter: str) -> set[str]:
    return {short(module.name) for module in flashinfer_modules(cases, adapter)}


@pytest.mark.parametrize(
    ("changes", "adapter", "wanted"),
    [
        ({}, "flashinfer-swa-merge", {"bf16:64:10", "bf16:64:00", "quantization", "cascade"}),
        ({"window_left": None}, "flashinfer-swa-merge", {"bf16:64:00", "cascade"}),
        ({"window_left": 0}, "flashinfer-paged-fa2", {"bf16:64:10", "page"}),
        ({"logits_soft_cap": 30.0}, "flashinfer-paged-fa2", {"bf16:64:11", "page"}),
        (
            {"logits_soft_cap": 30.0},
            "flashinfer-swa-merge",
            {"bf16:64:11", "bf16:64:01", "quantization", "cascade"},
        ),
        ({"dtype": "float16", "kv_dtype": "float16"}, "flashinfer-paged-fa2", {"f16:64:10", "page"}),
        ({"head_dim_qk": 128, "head_dim_vo": 128}, "flashinfer-paged-fa3", {"bf16:128:10_sm90", "page"}),
        ({"kv_layout": KvLayout.HND}, "flashinfer-paged-fa2", {"bf16:64:10", "page"}),
        ({"kv_layout": KvLayout.HND}, "flashinfer-swa-merge", set()),
        ({"sinks": True}, "flashinfer-paged-fa2", set()),
        ({"head_dim_qk": 96, "head_dim_vo": 96}, "flashinfer-paged-fa2", set()),
    ],
)
def test_modules_of_a_case(changes: dict[str, Any], adapter: str, wanted: set[str]) -> None:
    assert needed([CASE.replace(**changes)], adapter) == wanted


def test_modules_of_the_seeds() -> None:
    """The two target bugs: every dtype, head dim, window and cap of the suite, once."""
    prefills = {"bf16:64:00", "bf16:64:10", "bf16:128:00", "bf16:128:10", "f16:64:10"}
    merged = {*prefills, "f16:64:00", "quantization", "cascade"}  # the prefix leg never has a window of its own
    assert needed(load_suite("seeds"), "flashinfer-swa-merge") == merged
    paged = needed(load_suite("seeds"), "flashinfer-paged-fa2")
    assert paged == {*prefills, "page"}
    assert needed(load_suite("seeds"), "flashinfer-paged-fa3") == {n if n == "page" else f"{n}_sm90" for n in paged}


@pytest.mark.parametrize("adapter", FLASHINFER)
def test_names_are_those_that_the_adapters_look_for(adapter: str) -> None:
    for module in flashinfer_modules(load_suite("smoke"), adapter):
        if isinstance(module, PrefillModule):
            dtype = str(module.dtype_q).removeprefix("torch.")
            switches = (module.use_sliding_window, module.use_logits_soft_cap)
            assert module.name == module_name(dtype, module.head_dim_qk, *switches, module.backend)


def test_each_suite_needs_few_modules() -> None:
    """A module is minutes of compiling: a suite that grows past this should say so."""
    for suite in ("smoke", "seeds", "model-zoo"):
        names = set().union(*(needed(load_suite(suite), adapter) for adapter in FLASHINFER))
        assert 4 <= len(names) <= 24, (suite, names)


def test_calls_of_flash_attention_4() -> None:
    many = [CASE.replace(seed=seed) for seed in range(5)]
    calls = flash_attention_4_calls([*many, CASE.replace(window_left=None), CASE.replace(num_qo_heads=2), CASE])
    assert len(calls) == 3
    assert all(dict(call.tensors)["out"] is not None for call in calls)
    fields = [dict(call.numbers) for call in calls]
    assert [f["window_size"] for f in fields] == [(4, 0), (-1, -1), (4, 0)]


def test_a_call_without_data_is_the_same_call() -> None:
    (call,) = flash_attention_4_calls([CASE.replace(kv_layout=KvLayout.HND, sinks=True)])
    made = call.made(lambda like: torch.empty_strided(like.shape, like.stride, dtype=like.dtype))
    assert CallLike.of(made) == call
    assert not made.k_pool.is_contiguous()
    assert made.sinks is not None


# -- the real library, where it is installed -------------------------------------------------------
@pytest.mark.parametrize("kind", ["paged", "ragged"])
@pytest.mark.parametrize("window_left", [-1, 5])
@pytest.mark.parametrize("cap", [0.0, 30.0])
def test_plan_of_the_real_library_asks_for_these_names(
    kind: str, window_left: int, cap: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLASHINFER_CUDA_ARCH_LIST", "9.0a")
    flashinfer = pytest.importorskip("flashinfer")
    prefill = pytest.importorskip("flashinfer.prefill")
    asked: list[str] = []

    class Asked(Exception):
        pass

    def spy(*arguments: Any) -> Any:
        asked.append(jit._generators["prefill"](*arguments).name)
        raise Asked

    jit = FlashInferJit()
    monkeypatch.setattr(prefill, "gen_batch_prefill_module", spy)
    empty = torch.empty

    def pageable(*arguments: Any, pin_memory: bool = False, **named: Any) -> Any:
        del pin_memory  # needs a GPU
        return empty(*arguments, **named)

    monkeypatch.setattr(torch, "empty", pageable)

    def ints(*values: int) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32)

    workspace = torch.zeros(1 << 20, dtype=torch.uint8)
    if kind == "paged":
        wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD", backend="fa2")
        lengths = (ints(0, 3, 7), ints(0, 1, 3), ints(0, 1, 2), ints(5, 4), 8, 2, 64, 16)
    else:
        wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(workspace, "NHD", backend="fa2")
        lengths = (ints(0, 3, 7), ints(0, 5, 20), 8, 2, 64)
    bf16 = torch.bfloat16
    named = {"q_data_type": bf16, "kv_data_type": bf16, "window_left": window_left, "logits_soft_cap": cap}
    with pytest.raises(Asked):
        wrapper.plan(*lengths, head_dim_vo=64, causal=True, **named)
    module = PrefillModule("fa2", bf16, bf16, bf16, torch.int32, 64, 64, window_left >= 0, cap > 0)
    assert asked == [module.name]


def test_specs_of_the_real_library_have_these_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLASHINFER_CUDA_ARCH_LIST", "9.0a")
    pytest.importorskip("flashinfer")
    for adapter in FLASHINFER:
        modules = flashinfer_modules(load_suite("smoke"), adapter)
        assert [one.name for one, _ in FlashInferJit().look(modules)] == [module.name for module in modules]
