"""Running sums in blocks are running sums."""

from __future__ import annotations

import pytest
import torch

from references.certificates import running
from references.certificates.running import BLOCK, running_sums


@pytest.mark.parametrize("n", [0, 1, 2, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK, 5 * BLOCK + 7])
@pytest.mark.parametrize("shape", [(1, 3), (4, 1), (2, 5)])
@pytest.mark.parametrize("in_blocks", [True, False])
def test_sums(n: int, shape: tuple[int, int], in_blocks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if in_blocks:
        monkeypatch.setattr(running, "CPU_FROM", 1)
    lead, columns = shape
    generator = torch.Generator().manual_seed(n)
    values = torch.randint(-128, 128, (lead, n, columns), generator=generator, dtype=torch.int8)
    for dtype in (torch.int32, torch.int64):
        sums = running_sums(values, dtype)
        assert sums.dtype is dtype
        assert sums.shape == (lead, n + 1, columns)
        assert not sums[:, 0].any()
        assert torch.equal(sums[:, 1:], values.to(dtype).cumsum(1, dtype=dtype))
