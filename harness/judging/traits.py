"""From an adapter's declarations to what the references need to know of its rounding."""

from __future__ import annotations

import dataclasses

from harness.adapters.protocol import Adapter, declared
from references.traits import KernelTraits


def kernel_traits(adapter: Adapter) -> KernelTraits:
    return KernelTraits(
        merge_legs=declared(adapter, "merge_legs"),
        p_dtype=declared(adapter, "p_dtype"),
        rounded_splits=declared(adapter, "rounded_splits"),
        p_normalised=declared(adapter, "p_normalised"),
        masked_score=declared(adapter, "masked_score"),
        lse_base=str(adapter.lse_base),
        lse_includes_sink=adapter.lse_includes_sink,
    )


def row_sum_traits(adapter: Adapter) -> KernelTraits:
    """The same for the LSE, where what counts is the dtype that the softmax denominator adds up."""
    return dataclasses.replace(kernel_traits(adapter), p_dtype=declared(adapter, "row_sum_dtype"))


def declarations(adapter: Adapter) -> tuple[object, ...]:
    """All that an output is judged by, to be compared with what the adapter declares after another case."""
    return (kernel_traits(adapter), declared(adapter, "row_sum_dtype"), adapter.lse_base, adapter.empty_row)
