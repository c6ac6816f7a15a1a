"""What an adapter is: a small class with these members, no base class.

    class MyKernel:
        name = "my-kernel"
        protocol_version = 1
        capabilities = Capabilities(dtypes=("bfloat16",), window=True)
        lse_base = LseBase.NATURAL
        lse_includes_sink = False
        empty_row = EmptyRow.ZERO_MINUS_INF
        poison = Poison.FINITE

        def plan(self, batch: AttentionBatch) -> object: ...
        def run(self, plan: object, batch: AttentionBatch) -> AttentionOutput: ...

`plan` looks at lengths, page tables and the case, and never launches a kernel of the path under
test (a CUDA graph's capture excepted). `run` writes the new rows into the pool when its path does,
and calls the kernels. Optional members, with their defaults, are in `ADAPTER_DEFAULTS`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from cases.batch import AttentionBatch
from cases.schema import Poison
from harness.adapters.capabilities import Capabilities

PROTOCOL_VERSION = 1


class LseBase(StrEnum):
    """The logarithm of the LSE that an adapter returns."""

    NATURAL = "natural"
    LOG2 = "log2"


class EmptyRow(StrEnum):
    """What the path gives for a query that sees no key: its output, and its LSE."""

    ZERO_MINUS_INF = "zero_minus_inf"
    ZERO_PLUS_INF = "zero_plus_inf"
    UNSPECIFIED = "unspecified"


@dataclass(frozen=True, slots=True)
class AttentionOutput:
    """out: [total_q, num_qo_heads, head_dim_vo]; lse: [total_q, num_qo_heads] in the adapter's base,
    or None where the library gives none."""

    out: Tensor
    lse: Tensor | None = None


@runtime_checkable
class Adapter(Protocol):
    """The members every adapter has (see the module's text)."""

    name: str
    capabilities: Capabilities
    lse_base: LseBase
    lse_includes_sink: bool
    empty_row: EmptyRow
    poison: Poison

    def plan(self, batch: AttentionBatch) -> Any:
        """The typed plan of this path for a batch."""
        ...

    def run(self, plan: Any, batch: AttentionBatch) -> AttentionOutput:
        """Run the kernels on a plan; the output is in row order of `batch.q`, and as a PyTorch operation's result is:
        complete on the current stream, which need not be waited for."""
        ...


# merge_legs:      partial outputs in the output dtype that are merged (1: a single pass)
# p_dtype:         dtype that probabilities are rounded to before P @ V ("input": that of q)
# row_sum_dtype:   dtype of the probabilities that the softmax denominator, and so the LSE, adds up
#                  ("input": rounded to that of q, which moves the LSE by up to half its epsilon)
# rounded_splits:  split-kv partial outputs are rounded to the output dtype before they are merged
# p_normalised:    P is divided by the row sum before it is rounded
# masked_score:    finite <q, k> that a masked key gets, before any scale; None: minus infinity
# batch_invariant: a request's rows are bitwise the same whatever the rest of the batch is
# deterministic:   two runs give the same bits
# page_invariant:  the bits do not depend on which pages hold the keys (they may where a kernel loads neighbouring pages
#                  at once)
# pads_page_0:     padding rows of a graph are written to page 0 of the pool, which belongs to no request
# packages:        distributions whose versions a record keeps
# devices:         where it can run
ADAPTER_DEFAULTS: dict[str, Any] = {
    "protocol_version": PROTOCOL_VERSION,
    "merge_legs": 1,
    "p_dtype": "input",
    "row_sum_dtype": "float32",
    "rounded_splits": False,
    "p_normalised": False,
    "masked_score": None,
    "batch_invariant": False,
    "deterministic": True,
    "page_invariant": True,
    "pads_page_0": False,
    "packages": (),
    "devices": ("cuda",),
}


def declared(adapter: object, member: str) -> Any:
    """An optional member of an adapter, or its default."""
    return getattr(adapter, member, ADAPTER_DEFAULTS[member])
