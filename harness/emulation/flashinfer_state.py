"""What an emulated FlashInfer wrapper keeps from plan() for run()."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class PlanState:
    """What plan() leaves for run(); kv_* as far as the wrapper has them.

    use_window, use_soft_cap: the compiled module's flags, from plan time
    window_left, logits_soft_cap, causal, sm_scale: passed to the kernel at run
    packed_mask, mask_indptr: uint8 and int64 [requests+1] (bytes), or None
    """

    qo_indptr: tuple[int, ...]
    kv_indptr: tuple[int, ...]
    kv_lens: tuple[int, ...]
    kv_indices: Tensor | None
    page_size: int
    num_qo_heads: int
    num_kv_heads: int
    use_window: bool
    use_soft_cap: bool
    causal: bool
    window_left: int
    logits_soft_cap: float
    sm_scale: float
    packed_mask: Tensor | None
    mask_indptr: Tensor | None
    split_kv: bool
    q_dtype: torch.dtype
    kv_dtype: torch.dtype


def make_state(
    qo: tuple[int, ...],
    kv: tuple[int, ...],
    lens: tuple[int, ...],
    indices: Tensor | None,
    page_size: int,
    heads: tuple[int, int, int],
    masks: tuple[bool, int, float | None, float | None],
    packed: tuple[Tensor | None, Tensor | None],
    disable_split_kv: bool,
    dtypes: tuple[torch.dtype, torch.dtype | None],
) -> PlanState:
    """The state of a plan() call; a window, cap or mask that is off leaves its module flag off."""
    num_qo_heads, num_kv_heads, head_dim = heads
    causal, window_left, cap, sm_scale = masks
    if len(qo) != len(kv):
        raise ValueError("The length of qo_indptr and kv_indptr should be the same.")
    return PlanState(
        qo_indptr=qo,
        kv_indptr=kv,
        kv_lens=lens,
        kv_indices=indices,
        page_size=page_size,
        num_qo_heads=num_qo_heads,
        num_kv_heads=num_kv_heads,
        use_window=window_left >= 0,
        use_soft_cap=(cap or 0.0) > 0,
        causal=causal,
        window_left=window_left,
        logits_soft_cap=cap or 0.0,
        sm_scale=head_dim**-0.5 if sm_scale is None else sm_scale,
        packed_mask=packed[0],
        mask_indptr=packed[1],
        split_kv=not disable_split_kv,
        q_dtype=dtypes[0],
        kv_dtype=dtypes[0] if dtypes[1] is None else dtypes[1],
    )


def ints(tensor: Tensor) -> tuple[int, ...]:
    return tuple(int(value) for value in tensor.tolist())
