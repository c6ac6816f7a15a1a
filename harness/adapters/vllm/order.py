"""The order in which vLLM's runner puts a batch's requests for a builder that asks for decodes first.

GPUModelRunner._may_reorder_batch (v1/worker/gpu_model_runner.py, 0.22) calls vLLM's own
reorder_batch_to_split_decodes_and_prefills, which is called here too; a builder asks by `reorder_batch_threshold`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from cases.schema import Mode, Request


@dataclass(frozen=True, slots=True)
class Order:
    """requests: which request of the case stands at each place; rows: int64 [total_q], the same of the query rows.
    Both None where the case's own order stays."""

    requests: Tensor | None = None
    rows: Tensor | None = None

    def of_requests(self, given: Sequence[Request]) -> tuple[Request, ...]:
        return tuple(given) if self.requests is None else tuple(given[i] for i in self.requests.tolist())

    def of_table(self, page_table: Tensor) -> Tensor:
        return page_table if self.requests is None else page_table[self.requests]

    def of_rows(self, rows: Tensor) -> Tensor:
        return rows if self.rows is None else rows[self.rows]

    def undone(self, rows: Tensor) -> Tensor:
        """Rows in vLLM's order -> rows in the case's."""
        if self.rows is None:
            return rows
        out = torch.empty_like(rows)
        out[self.rows] = rows
        return out


def order_for(requests: Sequence[Request], mode: Mode, threshold: int | None, device: torch.device) -> Order:
    """The order for a builder's `reorder_batch_threshold`; None leaves the case's.

    What a request's prompt holds is not in a case: an EXTEND is taken as its last chunk, other modes as past it.
    """
    if threshold is None:
        return Order()
    import numpy as np  # vLLM's function takes arrays
    from vllm.v1.attention.backends.utils import reorder_batch_to_split_decodes_and_prefills

    places = list(range(len(requests)))

    def swap(first: int, second: int) -> None:
        places[first], places[second] = places[second], places[first]

    input_batch: Any = SimpleNamespace(
        req_ids=[str(place) for place in places],
        num_computed_tokens_cpu=np.array([r.prefix_len for r in requests]),
        num_prompt_tokens=np.array([r.kv_len if mode is Mode.EXTEND else r.prefix_len for r in requests]),
        swap_states=swap,
    )
    scheduled: Any = SimpleNamespace(num_scheduled_tokens={str(i): r.extend_len for i, r in enumerate(requests)})
    if not reorder_batch_to_split_decodes_and_prefills(input_batch, scheduled, threshold):
        return Order()
    starts = np.concatenate([[0], np.cumsum([r.extend_len for r in requests])])
    rows = np.concatenate([np.arange(starts[i], starts[i + 1]) for i in places])
    return Order(torch.tensor(places, device=device), torch.from_numpy(rows).to(device))
