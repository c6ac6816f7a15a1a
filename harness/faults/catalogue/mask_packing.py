"""Packed custom masks: the prefix leg of the merge recipe is what has one."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from cases.batch import AttentionBatch
from cases.schema import AttentionCase, Request
from harness.adapters.flashinfer_plans import SwaMergePlan
from harness.emulation.hooks import Launch
from harness.faults.catalogue import building as b
from harness.faults.protocol import Fault, FaultClass

MASKED = AttentionCase(requests=(Request(9, 3), Request(9, 4)), window_left=5)


def offsets_in_elements(launch: Launch, packed: Tensor, indptr: Tensor) -> tuple[Tensor, Tensor]:
    """Requests start at their element offset, counted in bytes; what lies behind the buffer reads as 0."""
    del launch
    elements = indptr * 8
    return torch.nn.functional.pad(packed, (0, max(0, 8 * packed.numel() - packed.numel() + 8))), elements


def first_request_for_all(launch: Launch, packed: Tensor, indptr: Tensor) -> tuple[Tensor, Tensor]:
    del launch
    return packed, torch.zeros_like(indptr)


def high_bit_first(launch: Launch, packed: Tensor, indptr: Tensor) -> tuple[Tensor, Tensor]:
    del launch
    shifts = torch.arange(8, dtype=torch.uint8, device=packed.device)
    bits = (packed[:, None] >> shifts) & 1
    return (bits.flip(1) << shifts).sum(1).to(torch.uint8), indptr


def padded_rows(plan: SwaMergePlan, batch: AttentionBatch) -> SwaMergePlan | None:
    """The mask is laid out [requests, longest q, longest kv] where a packed one is expected."""
    del batch
    leg = plan.paged
    if leg is None or leg.custom_mask is None:
        return None
    q_lens, k_lens = leg.qo_indptr.diff().tolist(), leg.kv_indptr.diff().tolist()
    padded = torch.zeros((len(q_lens), max(q_lens), max(k_lens)), dtype=torch.bool, device=leg.custom_mask.device)
    at = 0
    for i, (rows, keys) in enumerate(zip(q_lens, k_lens, strict=True)):
        padded[i, :rows, :keys] = leg.custom_mask[at : at + rows * keys].view(rows, keys)
        at += rows * keys
    return dataclasses.replace(plan, paged=dataclasses.replace(leg, custom_mask=padded.flatten()[:at]))


def _leg_shapes(case: AttentionCase) -> list[tuple[int, int]]:
    """(rows, keys) of every request in the prefix leg."""
    reach = case.window_left or 0
    return [(r.extend_len, min(r.prefix_len, reach)) for r in b.active(case) if r.prefix_len and reach]


two_masked_requests = b.first_of(
    b.needs_prefix_mask, b.unless(lambda case: len(_leg_shapes(case)) > 1, "one request in the prefix leg")
)

FAULTS: tuple[Fault, ...] = (
    Fault(
        "mask-offset-in-elements",
        FaultClass.MASK_PACKING,
        "requests after the first find their mask bits at the element offset, not the byte offset",
        ("flashinfer PR #2201",),
        on_kernel=b.kernel(mask_packing=offsets_in_elements),
        blind=two_masked_requests,
        adapters=b.FLASHINFER_MERGE,
        smallest=MASKED,
    ),
    Fault(
        "mask-of-first-request-for-all",
        FaultClass.MASK_PACKING,
        "every request reads the mask bits of the first",
        ("flashinfer PR #2201",),
        on_kernel=b.kernel(mask_packing=first_request_for_all),
        blind=two_masked_requests,
        adapters=b.FLASHINFER_MERGE,
        smallest=MASKED,
    ),
    Fault(
        "mask-bits-reversed",
        FaultClass.MASK_PACKING,
        "the bits of each mask byte are read from the high end",
        on_kernel=b.kernel(mask_packing=high_bit_first),
        blind=b.needs_prefix_mask,
        adapters=b.FLASHINFER_MERGE,
        smallest=MASKED,
    ),
    Fault(
        "mask-rows-padded",
        FaultClass.MASK_PACKING,
        "the mask is padded to the longest request where a packed one is expected",
        ("text-generation-inference PR #3324",),
        on_plan=b.by_plan(merge=padded_rows),
        blind=b.first_of(
            two_masked_requests, b.unless(lambda case: len(set(_leg_shapes(case))) > 1, "all requests have one shape")
        ),
        adapters=b.FLASHINFER_MERGE,
        smallest=MASKED,
    ),
)
