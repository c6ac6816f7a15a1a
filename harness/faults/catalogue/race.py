"""Races, made regular: what goes wrong now and then goes wrong every third launch here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from cases.schema import AttentionCase, Request
from harness.emulation.hooks import Launch, RequestCall
from harness.faults.catalogue import building as b
from harness.faults.protocol import Fault, FaultClass

EVERY = 3
WARP_ROWS = 16


def _old_rows() -> dict[str, Callable[..., Any]]:
    """One warp reads its V rows before they are replaced: the last 16 are the 16 before."""
    seen = {"launches": 0}

    def load(request: RequestCall, operand: str, rows: Tensor) -> Tensor:
        del request
        if operand != "v" or seen["launches"] % EVERY or rows.shape[0] < 2 * WARP_ROWS:
            return rows
        stale = rows.clone()
        stale[-WARP_ROWS:] = rows[-2 * WARP_ROWS : -WARP_ROWS]
        return stale

    def output(launch: Launch, values: Tensor) -> Tensor:
        del launch
        seen["launches"] += 1
        return values

    return {"load": load, "output": output}


FAULTS: tuple[Fault, ...] = (
    Fault(
        "warp-reads-old-rows",
        FaultClass.RACE,
        "now and then one warp reads V rows of the step before",
        ("flashinfer PR #1559", "flashinfer PR #1661"),
        on_kernel=b.kernel_with_memory(_old_rows),
        blind=b.unless(
            lambda case: any(count >= 2 * WARP_ROWS for count in b.visible_per_request(case)),
            "no request sees two warps' worth of keys",
        ),
        smallest=AttentionCase(requests=(Request(40, 2),)),
    ),
)
