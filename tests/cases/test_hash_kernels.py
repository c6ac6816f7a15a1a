"""The fused kernel draws the bits that cases/counter_hash.py defines."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from cases import counter_hash, hash_kernels

pytest.importorskip("triton", reason="not run: needs Triton")

COMPARE = """
import torch
from cases import counter_hash as plain
from cases.hash_kernels import BLOCK
from cases.hash_triton import draw, row_keys

place = torch.arange(37)
rows = plain.row_keys(plain.stream_key(5, "q"), place % 5, place * 1000003)
for stream in (3, -5, plain.stream_key(1, "v"), plain.stream_key(2, "q")):
    keys = torch.empty(37, dtype=torch.int64)
    row_keys[(1,)](place % 5, place * 1000003, keys, stream, 37, BLOCK)
    assert torch.equal(keys, plain.row_keys(stream, place % 5, place * 1000003)), stream
for columns in (1, 64, 130):
    for normal, definition in ((True, plain.normal), (False, plain.signs)):
        out = torch.empty(37, columns)
        draw[(-(-out.numel() // BLOCK),)](rows, out, out.numel(), columns, normal, BLOCK)
        assert torch.equal(out.double(), definition(rows, columns).double()), (columns, normal)
"""


def test_interpreted_on_a_cpu() -> None:
    # In a process of its own: the interpreter is chosen when a kernel is defined.
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, "-c", COMPARE], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="not run: needs a CUDA GPU")
@pytest.mark.parametrize("columns", [1, 64, 1000])
def test_the_same_bits_on_a_gpu(columns: int) -> None:
    place = torch.arange(4099)
    stream = counter_hash.stream_key(7, "k")
    rows = counter_hash.row_keys(stream, place % 3, place)
    assert torch.equal(counter_hash.row_keys(stream, (place % 3).cuda(), place.cuda()).cpu(), rows)
    drawn = hash_kernels.fused("normal", rows.cuda(), columns)
    assert drawn is not None, "no kernel was built; the warnings say why"
    assert torch.equal(drawn.cpu(), counter_hash.normal(rows, columns))
    assert torch.equal(counter_hash.signs(rows.cuda(), columns).cpu(), counter_hash.signs(rows, columns))
