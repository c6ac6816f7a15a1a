"""The fused passes of golden attention compute what references/passes.py defines."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch

from cases.recipes import LogicalData
from cases.schema import AttentionCase, Request
from references import golden
from references.fused_passes import TritonPasses
from references.passes import Chunk
from references.tiles import BucketIndex, make_plan
from tests.fused import run_script

COMPARE = """
import sys
import torch
from references import passes_triton
from references.fused_passes import TritonPasses, example, run_passes
from references.passes import TorchPasses

device = sys.argv[1]
for given in (
    {},  # both legs
    {"begin": 0, "end": 1024, "splits": 4},  # parts of the prefix
    {"begin": 1040, "end": 1100, "splits": 3, "dim": 40},  # the new keys, padded for the second tile
    {"begin": 1030, "end": 1031, "heads": 1, "group": 1},
    {"begin": 1000, "end": 1070, "group": 3},
):
    expected = run_passes(TorchPasses(), *example(device, **given))
    got = run_passes(TritonPasses(passes_triton), *example(device, **given))
    assert len(got) == len(expected)
    for a, b in zip(expected, got, strict=True):
        assert a.shape == b.shape
        torch.testing.assert_close(b, a, rtol=1e-13, atol=0)
    top, hidden = expected[4], expected[6] == 0
    assert given.get("end", 1100) > 1031 or bool(torch.isneginf(top).any()), "no row that sees none of these keys"
    assert bool(hidden.any()) and (given or not bool(hidden.all()))
print("compared")
"""

GOLDEN = """
import sys
import torch
from cases.recipes import make_data
from cases.schema import AttentionCase, Request
from references import fused_passes, golden, passes_triton, tiles
from references.passes import TorchPasses

device = sys.argv[1]
golden.on_gpu = lambda device: True
golden.SPLIT_KEYS, tiles.SPLIT_FROM = 8, 2
for changes in (
    {},
    {"window_left": 9, "sinks": True},
    {"causal": False, "logits_soft_cap": 5.0},
    {"kv_dtype": "float8_e4m3fn", "k_scale": 0.5, "v_scale": 2.0},
):
    case = AttentionCase(
        requests=(Request(30, 3), Request(0, 5), Request(70, 1)), num_qo_heads=4, head_dim_qk=24, head_dim_vo=16,
    ).replace(**changes)
    data = make_data(case, device)
    for scores in (1 << 9, 1 << 20):  # several chunks, and one
        golden.CHUNK_SCORES = scores
        found = []
        for passes in (TorchPasses(), fused_passes.TritonPasses(passes_triton)):
            golden.passes_on = lambda device: passes
            one = golden.golden_attention(case, data, moments=True)
            found.append([one.out, one.lse, *(getattr(one.moments, n) for n in one.moments.__dataclass_fields__)])
        for a, b in zip(*found, strict=True):
            torch.testing.assert_close(b, a, rtol=1e-12 if a.dtype == torch.float64 else 1e-6, atol=1e-15)
print("compared")
"""


@pytest.mark.parametrize("script", [COMPARE, GOLDEN], ids=["passes", "golden"])
def test_triton_interpreted_on_a_cpu(script: str) -> None:
    run_script(script, "cpu", interpreted=True)


def test_many_short_requests_fit_a_grid() -> None:
    """A grid's second dimension ends at 65535 programs, its first at 2^31 - 1."""
    grids: list[tuple[int, ...]] = []

    class Kernel:
        def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
            grids.append(grid)
            return lambda *_, **__: None

    case = AttentionCase(
        requests=(Request(40, 1),) * 9000, num_qo_heads=8, num_kv_heads=8, head_dim_qk=8, head_dim_vo=8
    )
    (bucket,) = make_plan(case, split_legs=True, most_scores=1 << 28, device="cuda").buckets
    of_rows, of_tiles = torch.zeros((9000, 1), dtype=torch.int64), torch.zeros((9000, 1), dtype=torch.int64)
    chunk = Chunk(bucket, BucketIndex(*[of_rows] * 3, *[of_tiles] * 3), 0, 41, 1)
    rows = torch.zeros(1, 8, 8)
    passes = TritonPasses(SimpleNamespace(gather=Kernel(), peaks=Kernel(), weigh=Kernel()))
    keys = passes.gather(chunk, LogicalData(rows, rows, rows, None), squares=True, sizes=True)
    s = torch.zeros(9000, 8, 1, 1, 41, dtype=torch.float64)
    passes.weigh(s, passes.peaks(s, chunk, sizes=False).top, chunk, squares=False)
    assert keys.k.shape == (9000, 8, 41, 8)
    assert grids == [(72000,)] * 3


def test_what_is_gathered_of_many_decodes_is_bounded() -> None:
    case = AttentionCase(requests=(Request(8191, 1),) * 64, num_qo_heads=32, num_kv_heads=8)
    most = 1 << 20
    columns = golden._most_columns(case, 64, 1, most, True)
    assert columns * 64 * max(32, 8 * 3 * 64 // 4) <= most < (columns + 1) * 64 * 8 * 3 * 64 // 4
    assert golden._most_columns(case, 64, 1, most, False) == most // (64 * 32), "a CPU keeps to its caches"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="not run: needs a CUDA GPU")
@pytest.mark.parametrize("script", [COMPARE, GOLDEN], ids=["passes", "golden"])
def test_on_a_gpu(script: str) -> None:
    run_script(script, "cuda")
