"""Emulated adapters against golden attention: every mode, window, page order, layout and launch."""

import math
import subprocess
import sys

import pytest
import torch

from cases.batch import build_batch
from cases.schema import AttentionCase, Execution, KvLayout, Mode, PageOrder, Poison, Request
from harness.adapters.protocol import LseBase, declared
from harness.adapters.registry import available, load_adapter
from references.golden import golden_attention

EMULATED = [entry.name for entry in available() if entry.emulated and entry.name.startswith("flash")]
ADAPTERS = {name: load_adapter(name) for name in EMULATED}
ATOL = {"bfloat16": 2e-2, "float16": 5e-3}
HALF_EPSILON = {"bfloat16": 2.0**-8, "float16": 2.0**-11}

BATCHES = {
    "short": [(3, 2), (4, 2), (5, 2)],
    "skewed": [(300, 4), (5, 4), (64, 4), (17, 4)],
    "mixed": [(0, 20), (50, 4), (9, 0), (0, 0), (0, 1)],
    "extends past the window": [(40, 50), (100, 70)],
    "no prefix": [(0, 70)],
    "long prefix": [(1500, 3)],
}
FLAVOURS = {
    "plain": {},
    "one page a token, odd group": {"page_size": 1, "num_qo_heads": 7, "num_kv_heads": 1},
    "interleaved HND": {"kv_layout": KvLayout.HND, "page_order": PageOrder.INTERLEAVED, "page_size": 32},
    "far pages, capped": {"page_order": PageOrder.FAR_END, "pool_pages": 400, "logits_soft_cap": 2.0},
    "reversed, scaled, fp16": {
        "page_order": PageOrder.REVERSED,
        "dtype": "float16",
        "kv_dtype": "float16",
        "sm_scale": 0.3,
        "head_dim_qk": 128,
        "head_dim_vo": 128,
    },
    "bidirectional": {"causal": False},
    "sinks": {"sinks": True},
    "NaN poison": {"poison": Poison.NAN},
    "three splits": {"execution": Execution(num_splits=3)},
    "one split, dirty": {"execution": Execution(num_splits=1, workspace="dirty")},
    "multi-head": {"num_qo_heads": 4, "num_kv_heads": 4, "page_size": 256},
}


def check_all(adapters, case):
    """Every adapter that takes the case is right on it; returns how many did."""
    batch = build_batch(case)
    golden = golden_attention(case, batch.data)
    taken = [adapter for adapter in adapters if adapter.capabilities.unsupported(case) is None]
    for adapter in taken:
        batch.reset()
        output = adapter.run(adapter.plan(batch), batch)
        assert output.out.shape == golden.out.shape
        error = (output.out.double() - golden.out).abs().max().item()
        assert error <= ATOL[case.dtype], f"{adapter.name} on {case.name}: {error}"
        assert output.lse is not None
        base = math.log2(math.e) if adapter.lse_base is LseBase.LOG2 else 1.0
        rounding = HALF_EPSILON[case.dtype] if declared(adapter, "row_sum_dtype") == "input" else 0.0
        lse_error = (output.lse.double() / base - golden.lse).abs().max().item()
        assert lse_error <= 1e-3 + rounding, f"{adapter.name} on {case.name}: lse {lse_error}"
    return len(taken)


@pytest.mark.parametrize("window", [None, 0, 4, 31, 500])
@pytest.mark.parametrize("requests", BATCHES)
def test_right_for_every_window(requests, window):
    case = AttentionCase(requests=BATCHES[requests], window_left=window)
    assert check_all(ADAPTERS.values(), case) >= 5  # FlashInfer fa3 takes no request without keys


@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize("flavour", FLAVOURS)
def test_right_for_every_flavour(flavour, window):
    tried = 0
    for requests in ("mixed", "extends past the window"):
        case = AttentionCase(requests=BATCHES[requests], window_left=window, **FLAVOURS[flavour])
        tried += check_all(ADAPTERS.values(), case)
    assert tried >= 2


@pytest.mark.parametrize("mode", list(Mode))
def test_right_in_every_mode(mode):
    extend = 1 if mode is Mode.DECODE else 4
    case = AttentionCase(requests=[(300, extend), (5, extend), (64, extend), (16, extend)], mode=mode, window_left=31)
    assert check_all(ADAPTERS.values(), case) == len(EMULATED)


GRAPHS = [ADAPTERS[name] for name in EMULATED if name.startswith("flash-attn")]


@pytest.mark.parametrize("captured", [(2, 6), (900, 6), (0, 40)])
@pytest.mark.parametrize("window", [None, 31])
def test_graph_captured_for_another_batch(captured, window):
    case = AttentionCase(
        requests=[(300, 4), (5, 1), (64, 6), (17, 0)],
        mode=Mode.DRAFT_EXTEND_V2,
        window_left=window,
        execution=Execution(capture_requests=(Request(*captured),) * 4),
    )
    assert check_all(GRAPHS, case) == 3


@pytest.mark.parametrize("name", EMULATED)
def test_new_rows_end_up_in_the_pool(name):
    case = AttentionCase(requests=[(5, 3), (0, 4)], window_left=2, page_size=16)
    batch, expected = build_batch(case), build_batch(case)
    expected.write_new_rows()
    ADAPTERS[name].run(ADAPTERS[name].plan(batch), batch)
    written = batch.k_pool.view(-1, 2, 64)[batch.new_slots]
    assert torch.equal(written, batch.k_new)
    assert torch.equal(batch.v_pool.view(torch.int16), expected.v_pool.view(torch.int16))


def test_long_prefix_with_a_window():
    case = AttentionCase(requests=[(16_384, 64)], window_left=1023, num_qo_heads=4, num_kv_heads=1, page_size=64)
    assert check_all([ADAPTERS["flashinfer-swa-merge@emulated"], ADAPTERS["flash-attn-3@emulated"]], case) == 2


def test_bad_adapter_use_is_told():
    case = AttentionCase(requests=[(5, 3)], kv_layout=KvLayout.HND)
    assert "HND" in (ADAPTERS["flashinfer-swa-merge@emulated"].capabilities.unsupported(case) or "")


@pytest.mark.nightly
def test_longest_context_fits_in_two_gigabytes():
    """Full attention of 64 rows over 131,072 keys, in a process of its own to see its peak memory."""
    code = """
import resource, torch
from cases.batch import build_batch
from cases.schema import AttentionCase
from harness.adapters.registry import load_adapter
torch.set_num_threads(1)
batch = build_batch(AttentionCase(requests=[(131_072, 64)], num_qo_heads=8, num_kv_heads=1, page_size=64))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for name in ("flashinfer-swa-merge@emulated", "flash-attn-3@emulated"):
    adapter = load_adapter(name)
    assert torch.isfinite(adapter.run(adapter.plan(batch), batch).out).all()
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 2048
