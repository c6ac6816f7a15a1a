"""The fused filling of pools gives what cases/pools.py defines."""

from __future__ import annotations

import pytest
import torch

from tests.fused import run_script

COMPARE = """
import itertools, sys
import torch
from cases import AttentionCase, Request
from cases import hash_kernels, pools
from cases.batch import build_batch
from cases.schema import KvLayout, Mode, PageOrder, Poison

device, dtypes = sys.argv[1], sys.argv[2:]
if device == "cpu":  # interpreted
    hash_kernels._triton_works = lambda: True
shape = dict(requests=(Request(40, 5), Request(0, 9), Request(7, 3)), num_qo_heads=6, num_kv_heads=3)
dims = ((64, 64, 16, PageOrder.SHUFFLED), (96, 32, 1, PageOrder.REVERSED), (64, 128, 5, PageOrder.INTERLEAVED))
count = 0
for dtype, level, layout, (qk, vo, page_size, order) in itertools.product(dtypes, Poison, KvLayout, dims):
    case = AttentionCase(
        **shape, head_dim_qk=qk, head_dim_vo=vo, page_size=page_size, page_order=order, kv_layout=layout, dtype=dtype,
        kv_dtype=dtype, poison=level,
    )
    hash_kernels.on_gpu = lambda device: False
    expected = build_batch(case, device)
    hash_kernels.on_gpu = lambda device: True
    got = build_batch(case, device)
    for name in ("k_pool", "v_pool"):
        a, b = getattr(expected, name), getattr(got, name)
        assert a.data_ptr() != b.data_ptr() and a.dtype == b.dtype
        assert torch.equal(a.isnan(), b.isnan()), (name, case.name)
        assert torch.equal(a.nan_to_num(), b.nan_to_num()), (name, case.name)
        count += 1
assert count == len(dtypes) * 36, count
assert pools._kernel_agrees(device), "the warnings say why"
print("compared", count)
"""


def test_triton_interpreted_on_a_cpu() -> None:
    run_script(COMPARE, "cpu", "float16", interpreted=True)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="not run: needs a CUDA GPU")
def test_the_same_pools_on_a_gpu() -> None:
    run_script(COMPARE, "cuda", "bfloat16", "float16")
