"""The catalogue: every named fault, one file per class."""

from __future__ import annotations

import dataclasses

from harness.faults.catalogue import (
    controls,
    empty_rows,
    extent,
    garbage,
    int32,
    layout,
    lse_base,
    mask_packing,
    race,
    scale,
    shape,
    span_estimate,
    split_merge,
    staleness,
    window,
)
from harness.faults.catalogue.building import FLASH_ATTENTION, FLASHINFER_MERGE
from harness.faults.protocol import Fault
from harness.faults.seeds import SEED_FAULTS

_SEEDS = {
    "swa-merge-window-missing": (FLASHINFER_MERGE, window.TINY),
    "draft-extend-prefix-only": (FLASH_ATTENTION, extent.DRAFT),
    "draft-extend-double-count": (FLASH_ATTENTION, extent.DRAFT),
}


def _seeds() -> tuple[Fault, ...]:
    """The seed faults, told which adapters they are for."""
    return tuple(
        dataclasses.replace(fault, adapters=_SEEDS[fault.name][0], smallest=_SEEDS[fault.name][1])
        for fault in SEED_FAULTS
    )


CATALOGUE: tuple[Fault, ...] = (
    *_seeds(),
    *window.FAULTS,
    *span_estimate.FAULTS,
    *extent.FAULTS,
    *staleness.FAULTS,
    *empty_rows.FAULTS,
    *garbage.FAULTS,
    *split_merge.FAULTS,
    *lse_base.FAULTS,
    *int32.FAULTS,
    *layout.FAULTS,
    *shape.FAULTS,
    *mask_packing.FAULTS,
    *scale.FAULTS,
    *race.FAULTS,
)
CONTROLS: tuple[Fault, ...] = controls.FAULTS
