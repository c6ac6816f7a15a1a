"""Cost against growth: time per case along one axis at a time, so that one sees where a stage stops scaling."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from cases.schema import AttentionCase, Request
from harness.adapters.protocol import Adapter
from harness.bench.measure import Clock, run_cases, stage_seconds
from harness.record import RecordWriter
from harness.running.options import RunOptions

NEW_ROWS = 16
REQUESTS = 8
TOKENS = 16384

AXES: dict[str, tuple[int, ...]] = {
    "tokens": (1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 18),  # keys in all, 8 requests
    "requests": (1, 8, 64, 512),  # 16384 keys in all
    "heads": (2, 8, 32, 64),  # query heads, 4 to a kv head, 16384 keys in all
}


def growth_case(axis: str, value: int, seed: int) -> AttentionCase:
    """One case at `value` of `axis`, the other two at their middle."""
    tokens = value if axis == "tokens" else TOKENS
    requests = value if axis == "requests" else REQUESTS
    heads = value if axis == "heads" else 8
    length = max(2, tokens // requests)
    new = min(NEW_ROWS, length - 1)
    return AttentionCase(
        requests=(Request(length - new, new),) * requests,
        num_qo_heads=heads,
        num_kv_heads=max(1, heads // 4),
        seed=seed,
    )


def growth(
    adapter: Adapter, device: torch.device, *, evidence: str = "bound", repeats: int = 3, seconds: float = 120.0
) -> Iterator[dict[str, Any]]:
    """Rows {"axis", "value", "milliseconds": by stage} as they are measured, until `seconds` are over."""
    options = RunOptions(evidence=evidence, explain=False, rerun=False)
    clock = Clock(seconds)
    with TemporaryDirectory() as folder:
        writer = RecordWriter(Path(folder) / "records.jsonl")
        for number, (axis, values) in enumerate(AXES.items()):
            for value in values:
                if clock.is_over:
                    return
                run_cases([growth_case(axis, value, 1 << 20)], adapter, device, options, writer)
                # Seeds of its own for each axis: golden of a case that two axes share would be kept.
                cases = [growth_case(axis, value, number * repeats + i) for i in range(repeats)]
                stages = stage_seconds(cases, adapter, device, options, writer)
                yield {"axis": axis, "value": value, "milliseconds": {name: s * 1e3 for name, s in stages.items()}}
