"""Golden answers, kept between runs of one case: for another adapter, a second poison level, a planted fault.

A case's id is a hash of everything that its data follow from, so the id and the device say which answer it is. What
is kept is bounded in bytes, the least recently used goes first. Golden is computed before the kernel under test sees
the data: one that overwrites its inputs cannot be judged by what it left there.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

import torch

from cases.recipes import LogicalData
from cases.schema import AttentionCase
from references.golden import GoldenOutput, golden_attention
from references.moments import RowMoments

CPU_BYTES = 256 << 20
GPU_BYTES = 1 << 30
GPU_SHARE = 0.02  # of the device's memory at most: it is the kernel's first
Key = tuple[str, str, bool]


@dataclass(slots=True)
class KeptGolden:
    """A cache of golden answers by (case id, device, sinks counted)."""

    limit: int
    bytes: int = 0
    _kept: OrderedDict[Key, tuple[GoldenOutput, int]] = field(default_factory=OrderedDict)

    def get(self, case: AttentionCase, data: LogicalData, *, sinks: bool = True) -> GoldenOutput:
        """Golden of `case` on its own data, with moments; `sinks` False: as if it had none (no moments then)."""
        key = (case.id, str(data.q.device), sinks)
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key][0]
        seen = data if sinks else LogicalData(data.q, data.k, data.v, None)
        golden = golden_attention(case, seen, moments=sinks)
        size = _size(golden)
        if size <= self.limit:
            self._kept[key] = golden, size
            self.bytes += size
        while self.bytes > self.limit:
            _, (_, freed) = self._kept.popitem(last=False)
            self.bytes -= freed
        return golden


def _size(golden: GoldenOutput) -> int:
    tensors = [golden.out, golden.lse]
    if golden.moments is not None:
        tensors += [getattr(golden.moments, name) for name in RowMoments.__dataclass_fields__]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


_by_device: dict[str, KeptGolden] = {}


def forget() -> None:
    """Keep nothing of what was: what is measured next must not be helped by it."""
    _by_device.clear()


def golden_of(case: AttentionCase, data: LogicalData, *, sinks: bool = True) -> GoldenOutput:
    """Golden of a case on its own data (not on a certificate's), out of what this process keeps."""
    device = data.q.device
    if str(device) not in _by_device:
        limit = CPU_BYTES
        if device.type == "cuda":
            limit = min(GPU_BYTES, int(GPU_SHARE * torch.cuda.get_device_properties(device).total_memory))
        _by_device[str(device)] = KeptGolden(limit)
    return _by_device[str(device)].get(case, data, sinks=sinks)
