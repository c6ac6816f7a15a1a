"""FlashInfer's packed custom masks: one bit per (row, key), each request from a byte boundary on."""

from __future__ import annotations

import torch
from torch import Tensor


def pack_masks(
    mask: Tensor | None, qo_indptr: tuple[int, ...], kv_lens: tuple[int, ...]
) -> tuple[Tensor | None, Tensor | None]:
    """segment_packbits, little bit order: every request starts on a byte. Returns bytes and their indptr."""
    if mask is None:
        return None, None
    flat, packed, starts, at = mask.reshape(-1), [], [0], 0
    for i, kv_len in enumerate(kv_lens):
        count = (qo_indptr[i + 1] - qo_indptr[i]) * kv_len
        packed.append(pack_bits(flat[at : at + count]))
        starts.append(starts[-1] + packed[-1].numel())
        at += count
    return torch.cat(packed), torch.tensor(starts, device=mask.device)


def pack_bits(bits: Tensor) -> Tensor:
    """bool [n] -> uint8 [ceil(n/8)], bit b of byte j is element 8j+b."""
    padded = torch.nn.functional.pad(bits.to(torch.uint8), (0, -bits.numel() % 8)).view(-1, 8)
    shifts = torch.arange(8, dtype=torch.uint8, device=bits.device)
    return (padded << shifts).sum(-1).to(torch.uint8)


def unpack_bits(packed: Tensor) -> Tensor:
    """uint8 [n] -> bool [8n]; the inverse of pack_bits up to its padding."""
    shifts = torch.arange(8, dtype=torch.uint8, device=packed.device)
    return ((packed[:, None] >> shifts) & 1).bool().reshape(-1)
