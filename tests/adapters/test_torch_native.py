"""Torch's own kernels against golden attention, on the CPU."""

import pytest

from cases.batch import build_batch
from cases.schema import AttentionCase, KvLayout, Poison
from harness.adapters.registry import available, load_adapter
from harness.adapters.torch_native import TorchFlex, TorchFlexEager, TorchSdpa, TorchVarlen, cannot_compile, plan_packed
from references.golden import golden_attention

BATCHES = ([(3, 2), (4, 2), (5, 2)], [(0, 20), (50, 4), (9, 0), (0, 1)], [(40, 50), (100, 70)], [(1500, 3)])
FLAVOURS = (
    {},
    {"causal": False},
    {"page_size": 1, "num_qo_heads": 7, "num_kv_heads": 1},
    {"dtype": "float16", "kv_dtype": "float16", "kv_layout": KvLayout.HND, "sm_scale": 0.3},
    {"dtype": "float32", "kv_dtype": "float32", "poison": Poison.NAN},
    {"logits_soft_cap": 2.0},
)
ATOL = {"bfloat16": 2e-2, "float16": 5e-3, "float32": 1e-4}


def check(adapter, case):
    batch = build_batch(case)
    golden = golden_attention(case, batch.data)
    output = adapter.run(adapter.plan(batch), batch)
    error = (output.out.double() - golden.out).abs().max().item()
    assert error <= ATOL[case.dtype], f"{adapter.name} on {case.name}: {error}"
    if output.lse is not None:
        assert (output.lse.double() - golden.lse).abs().max().item() <= 1e-3


@pytest.mark.parametrize("name", ["torch-sdpa", "torch-flex-eager"])
@pytest.mark.parametrize("window", [None, 0, 31])
@pytest.mark.filterwarnings("ignore:flex_attention called without")
def test_right(name, window):
    adapter, tried = load_adapter(name), 0
    for requests in BATCHES:
        for flavour in FLAVOURS:
            case = AttentionCase(requests=requests, window_left=window, **flavour)
            if adapter.capabilities.unsupported(case) is None:
                check(adapter, case)
                tried += 1
    assert tried >= 4 * 5


@pytest.mark.nightly
@pytest.mark.skipif(cannot_compile() is not None, reason=f"{cannot_compile()}")
def test_compiled_flex_is_right_for_every_window_with_one_kernel():
    adapter = load_adapter("torch-flex")
    for window in (None, 0, 31):
        check(adapter, AttentionCase(requests=[(40, 50), (100, 70)], window_left=window))


def test_the_plan_names_every_key_once():
    batch = build_batch(AttentionCase(requests=[(3, 2), (0, 1)], page_size=4))
    plan = plan_packed(batch)
    assert plan.q_bounds == (0, 2, 3)
    assert plan.kv_bounds == (0, 5, 6)
    assert plan.q_position.tolist() == [3, 4, 0]
    assert plan.kv_position.tolist() == [0, 1, 2, 3, 4, 0]
    assert plan.kv_request.tolist() == [0] * 5 + [1]
    assert len(set(plan.kv_slots.tolist())) == 6


def test_names_tell_eager_from_compiled():
    names = [entry.name for entry in available() if entry.name.startswith("torch")]
    assert names == [TorchVarlen.name, TorchSdpa.name, TorchFlex.name, TorchFlexEager.name]
    assert TorchVarlen.devices == ("cuda",)
    assert not any(entry.emulated for entry in available() if entry.name in names)
