"""The passes of references/passes.py by one Triton kernel each, and the choice between the two."""

from __future__ import annotations

import functools
import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cases.recipes import LogicalData
from references.passes import Chunk, Keys, Peaks, TorchPasses, Weights
from references.tiles import Bucket, BucketIndex, Tiles

NUMBERS = 2048  # that a program gathers at a time
OF_THREAD = 8  # scores that each thread of a program looks at: more would take the registers of other programs


class TritonPasses(TorchPasses):
    """`peaks` leaves the scores as they are; `weigh` reads only the visible ones."""

    def __init__(self, kernels: Any) -> None:
        self._kernels = kernels

    def gather(self, chunk: Chunk, data: LogicalData, *, squares: bool, sizes: bool) -> Keys:
        if data.k.element_size() == 1:  # fp8, whose types not every version of Triton knows
            return super().gather(chunk, data, squares=squares, sizes=sizes)
        k, v, index = data.k.contiguous(), data.v.contiguous(), chunk.index
        heads, dk, dv = k.shape[1], k.shape[2], v.shape[2]
        wide_k, wide_v = (1 << (dim - 1).bit_length() for dim in (dk, dv))
        shape = (index.low.shape[0], heads, chunk.end - chunk.begin)
        at_once = max(1, NUMBERS // max(wide_k, wide_v))
        blocks = -(-shape[2] // at_once)
        new = functools.partial(torch.empty, dtype=torch.float64, device=k.device)
        out_k, out_v = new((*shape, dk)), new((*shape, 2 * dv if squares else dv))
        found = new((2, *shape[:2], blocks) if sizes else (0,))
        self._kernels.gather[(shape[0] * heads * blocks,)](
            k, v, index.low, index.middle, index.high, out_k, out_v, found,
            blocks, shape[2], chunk.begin, chunk.bucket.prefix,
            heads, dk, dv, at_once, wide_k, wide_v, squares, sizes,
        )  # fmt: skip
        return Keys(out_k, out_v, *(found.amax(-1) if sizes else (None, None)))

    def peaks(self, s: Tensor, chunk: Chunk, *, sizes: bool) -> Peaks:
        found = torch.empty((2 if sizes else 1, *s.shape[:-1], 1), dtype=s.dtype, device=s.device)
        block, warps = _block(s.shape[-1])
        self._kernels.peaks[(found[0].numel(),)](
            s, *_intervals(chunk), found, *_sizes(s, chunk), sizes, block, num_warps=warps
        )
        if s.shape[2] > 1:
            found = found.amax(3, keepdim=True)
        return Peaks(found[0], found[1] if sizes else None)

    def weigh(self, s: Tensor, top: Tensor, chunk: Chunk, *, squares: bool) -> Weights:
        sums = torch.empty((3, *s.shape[:-1], 1), dtype=s.dtype, device=s.device)
        p_squared = torch.empty_like(s) if squares else s  # not written to
        block, warps = _block(s.shape[-1])
        self._kernels.weigh[(sums[0].numel(),)](
            s, top.contiguous(), *_intervals(chunk), p_squared, sums, *_sizes(s, chunk), chunk.cut, squares, block,
            num_warps=warps,
        )  # fmt: skip
        return Weights(s, p_squared if squares else None, sums[0], sums[1], sums[2] if squares else None)


def _block(columns: int) -> tuple[int, int]:
    """How many columns of a row at a time, and by how many warps: large, but little of it past the row's end."""
    block = min((1024, 512, 256), key=lambda size: -(-columns // size) * size * (1 + 32 / size))
    return block, block // (32 * OF_THREAD)


def _intervals(chunk: Chunk) -> tuple[Tensor, ...]:
    index = chunk.index
    return index.first, index.last, index.low, index.middle, index.high


def _sizes(s: Tensor, chunk: Chunk) -> tuple[int, ...]:
    _, heads, splits, rows, columns = s.shape
    return columns, splits, heads, rows, chunk.index.rows.shape[1], chunk.begin, chunk.bucket.prefix


def passes_on(device: torch.device) -> TorchPasses:
    """The faster of the two that there is."""
    fused = _fused() if device.type == "cuda" else None
    return TorchPasses() if fused is None else fused


@functools.cache
def _fused() -> TritonPasses | None:
    """None without Triton, or a compiler for it. Compared with the definition here, before anything is judged by it."""
    try:
        from references import passes_triton
    except ImportError:
        return None
    fused = TritonPasses(passes_triton)
    try:
        made = run_passes(fused, *example("cuda"))
    except Exception as problem:  # whatever Triton's toolchain raises; torch computes the same
        warnings.warn(f"golden attention without fused kernels: {type(problem).__name__}: {problem}", stacklevel=2)
        return None
    for got, expected in zip(made, run_passes(TorchPasses(), *example("cuda")), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-13, atol=1e-300)
    return fused


def run_passes(passes: TorchPasses, chunk: Chunk, data: LogicalData, s: Tensor) -> list[Tensor]:
    """All that the passes make of a chunk, with scores s."""
    s = s.clone()
    keys = passes.gather(chunk, data, squares=True, sizes=True)
    peaks = passes.peaks(s, chunk, sizes=True)
    weights = passes.weigh(s, peaks.top, chunk, squares=True)
    return [each for each in (*keys, *peaks, *weights) if each is not None]


def example(
    device: str, *, heads: int = 2, group: int = 2, dim: int = 24, begin: int = 0, end: int = 1100, splits: int = 1
) -> tuple[Chunk, LogicalData, Tensor]:
    """Two tiles of three rows, the second shorter, over packed keys: prefixes of 1040 and 30 and new keys of 60 and 3;
    one row sees nothing. Columns begin..end of the 1040 + 60."""
    low, middle, high = np.array([5, 1110]), np.array([1045, 1140]), np.array([1105, 1143])
    bucket = Bucket(Tiles(np.array([0, 3]), np.array([3, 3]), low, middle, high, low, high), 3, 1040, 60)
    made = [np.arange(6), [5, 40, 900, 1110, 1120, 1130], [1046, 1100, 1105, 1141, 1120, 1143], low, middle, high]
    rows, first, last, *bounds = (torch.from_numpy(np.array(each, dtype=np.int64)).to(device) for each in made)
    of_rows = (each.view(2, 3) for each in (rows, first, last))
    index = BucketIndex(*of_rows, *(each.view(2, 1) for each in bounds))
    generator = torch.Generator().manual_seed(3)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, dtype=torch.float64, generator=generator)

    q, k, v = drawn(6, heads * group, dim), drawn(1143, heads, dim), drawn(1143, heads, dim // 2)
    q, k, v = (each.to(torch.bfloat16).to(device) for each in (q, k, v))
    data = LogicalData(q, k, v, None)
    s = drawn(2, heads, splits, group * 3, (end - begin) // splits) * 40
    return Chunk(bucket, index, begin, end, splits), data, s.to(device)
