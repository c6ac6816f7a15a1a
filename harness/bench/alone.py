"""Kernel and golden alone: what cannot be spared of examining cases, on inputs that are there already.

The rate that they reach, given to the device without waiting, is what the harness would reach if it cost nothing.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from cases.batch import AttentionBatch, build_batches
from cases.recipes import LogicalData
from cases.schema import AttentionCase
from cases.together import merged, merged_data
from harness.adapters.protocol import Adapter
from harness.errors import UsageError
from harness.running.examine import AdapterFailure, adapter_at_work, synchronize
from harness.running.options import RunOptions
from harness.running.together import MOST_CASES, groups
from references.golden import golden_attention


@dataclass(frozen=True, slots=True)
class _Group:
    """Cases that one golden pass answers, drawn and built."""

    whole: AttentionCase
    data: LogicalData
    batches: list[AttentionBatch]


class KernelAndGolden:
    """Of cases, in the groups in which they are examined. A library's own planning counts as its kernel does: a plan
    may hold only until the next one."""

    def __init__(
        self, cases: Sequence[AttentionCase], adapter: Adapter, options: RunOptions, device: torch.device
    ) -> None:
        self.adapter, self.device, self.cases = adapter, device, len(cases)
        self._groups: list[_Group] = []
        for at in range(0, len(cases), MOST_CASES):
            near = cases[at : at + MOST_CASES]
            shared = list(groups(near, adapter, options, device))
            single = set(range(len(near))).difference(*shared)
            for members in [*shared, *([index] for index in sorted(single))]:
                own = [near[index] for index in members]
                data = merged_data(own, device)
                levels = [case.poison.weaker(adapter.poison) for case in own]
                self._groups.append(_Group(merged(own), data, build_batches(own, data, levels)))

    def run(self) -> None:
        """Every case once. The device is waited for at the end. Raises UsageError for what the adapter raises."""
        try:
            for group in self._groups:
                golden_attention(group.whole, group.data, moments=True)
                for batch in group.batches:
                    self._run(batch)
        except AdapterFailure as failure:
            raise UsageError(f"{self.adapter.name} failed when its kernels were timed alone: {failure}") from failure
        synchronize(self.device)

    def _run(self, batch: AttentionBatch) -> None:
        if hasattr(self.adapter, "prepare"):
            with adapter_at_work("prepare"):
                self.adapter.prepare(batch.case)
        with adapter_at_work("plan"):
            plan = self.adapter.plan(batch)
        with adapter_at_work("run"):
            self.adapter.run(plan, batch)

    def rate(self, seconds: float) -> float:
        """Cases per second, of whole passes that take `seconds` or a little longer."""
        done, start = 0, time.perf_counter()
        while not done or time.perf_counter() - start < seconds:
            self.run()
            done += self.cases
        return done / (time.perf_counter() - start)
