"""The faster ways draw the bits that cases/counter_hash.py defines."""

from __future__ import annotations

import pytest
import torch

from cases import counter_hash, hash_kernels, hash_numpy
from tests.fused import run_script


@pytest.mark.parametrize("columns", [0, 1, 3, 64, hash_numpy.CHUNK + 1])
@pytest.mark.parametrize("rows", [0, 1, 37])
def test_numpy(rows: int, columns: int) -> None:
    place = torch.arange(rows)
    for stream in (3, -5, counter_hash.stream_key(1, "v"), counter_hash.stream_key(5, "q")):
        keys = counter_hash.row_keys(stream, place % 5, place * 1000003)
        assert torch.equal(keys, counter_hash.row_keys_defined(stream, place % 5, place * 1000003))
    bits = counter_hash.bits(keys, columns)
    assert torch.equal(counter_hash.normal(keys, columns), counter_hash.normal_of_bits(bits))
    assert torch.equal(counter_hash.signs(keys, columns), counter_hash.signs_of_bits(bits))
    strided = keys.repeat_interleave(2)[::2]
    assert torch.equal(counter_hash.normal(strided, columns), counter_hash.normal_of_bits(bits))


COMPARE = """
import torch
from cases import counter_hash as plain
from cases.hash_kernels import BLOCK
from cases import hash_triton
from cases.hash_triton import row_keys

place = torch.arange(37)
rows = plain.row_keys(plain.stream_key(5, "q"), place % 5, place * 1000003)
for stream in (3, -5, plain.stream_key(1, "v"), plain.stream_key(2, "q")):
    keys = torch.empty(37, dtype=torch.int64)
    row_keys[(1,)](place % 5, place * 1000003, keys, stream, 37, BLOCK)
    assert torch.equal(keys, plain.row_keys_defined(stream, place % 5, place * 1000003)), stream
from cases import AttentionCase, Request, hash_kernels, together
cases = [
    AttentionCase(requests=(Request(40, 5), Request(0, 9), Request(7, 0)), seed=3),
    AttentionCase(requests=(Request(0, 1), Request(300, 2)), seed=8),
]
hash_kernels._triton_works = lambda: True
keys = together._keys(cases, torch.device("cpu"))
hash_kernels.on_gpu = lambda device: True
for stream, defined, fused in zip("qkv", keys, together._keys(cases, torch.device("cpu")), strict=True):
    assert defined.numel() and torch.equal(fused, defined), stream
hash_kernels.on_gpu = lambda device: False
for columns in (1, 64, 130, 257):
    for normal, of_bits in ((True, plain.normal_of_bits), (False, plain.signs_of_bits)):
        for dtype in (torch.float32, torch.float16, torch.float8_e5m2):
            out = hash_kernels.drawn(hash_triton, "normal" if normal else "signs", rows, columns, dtype)
            assert out.dtype is dtype
            defined = of_bits(plain.bits(rows, columns)).to(dtype)
            assert torch.equal(out.float(), defined.float()), (columns, normal, dtype)
print("compared")
"""


def test_triton_interpreted_on_a_cpu() -> None:
    run_script(COMPARE, interpreted=True)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="not run: needs a CUDA GPU")
@pytest.mark.parametrize("columns", [1, 64, 1000])
def test_the_same_bits_on_a_gpu(columns: int) -> None:
    place = torch.arange(4099)
    stream = counter_hash.stream_key(7, "k")
    rows = counter_hash.row_keys(stream, place % 3, place)
    assert torch.equal(counter_hash.row_keys(stream, (place % 3).cuda(), place.cuda()).cpu(), rows)
    drawn = hash_kernels.fast("normal", rows.cuda(), columns)
    assert drawn is not None, "no kernel was built; the warnings say why"
    assert torch.equal(drawn.cpu(), counter_hash.normal(rows, columns))
    assert torch.equal(counter_hash.signs(rows.cuda(), columns).cpu(), counter_hash.signs(rows, columns))
    for dtype in (torch.bfloat16, torch.float16, torch.float8_e4m3fn):
        rounded = counter_hash.normal(rows.cuda(), columns, dtype).cpu()
        assert torch.equal(rounded.float(), counter_hash.normal(rows, columns, dtype).float())
