"""A batch as SGLang's scheduler hands it to a backend: request rows, ForwardBatch, speculative input.

What `seq_lens` holds is production's own, read from SGLang's callers (0.5.12, 0.5.13 and 0.5.23 agree):

| mode            | seq_lens          | source                                                                    |
|-----------------|-------------------|---------------------------------------------------------------------------|
| EXTEND          | prefix + extend   | managers/schedule_batch.py `ScheduleBatch.prepare_for_extend`             |
| DECODE          | prefix + 1        | managers/schedule_batch.py `ScheduleBatch.prepare_for_decode`             |
| DRAFT_EXTEND_V2 | prefix + extend   | speculative/eagle_info_v2.py `prepare_for_extend_to_fill_draft_kvcache`   |
|                 |                   | (0.5.14 on: `prepare_for_draft_extend`, in speculative/                   |
|                 |                   | base_spec_worker.py, from 0.5.16 on eagle_worker_common.py)               |
| TARGET_VERIFY   | prefix            | speculative/eagle_info_v2.py `prepare_for_v2_verify`: the draft tokens    |
|                 |                   | are not yet in seq_lens; backends add speculative_num_draft_tokens        |

In the last two every request extends by the same number of tokens, `speculative_num_draft_tokens`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cases.batch import AttentionBatch
from cases.schema import Mode, Request
from harness.adapters.sglang.setup import Setup

MODES = {
    Mode.EXTEND: "EXTEND",
    Mode.DECODE: "DECODE",
    Mode.DRAFT_EXTEND_V2: "DRAFT_EXTEND_V2",
    Mode.TARGET_VERIFY: "TARGET_VERIFY",
}


@dataclass(slots=True)
class Lengths:
    """Lengths of a batch on the host; seq_lens by the convention that is driven."""

    prefix: list[int]
    extend: list[int]
    seq_lens: list[int]


def lengths(requests: Sequence[Request], mode: Mode, *, prefix_only: bool) -> Lengths:
    """`prefix_only`: the other reading of DRAFT_EXTEND_V2, in which seq_lens does not count the new rows."""
    prefix, extend = [r.prefix_len for r in requests], [r.extend_len for r in requests]
    short = mode is Mode.TARGET_VERIFY or (mode is Mode.DRAFT_EXTEND_V2 and prefix_only)
    return Lengths(prefix, extend, prefix if short else [r.kv_len for r in requests])


def request_rows(count: int) -> list[int]:
    """Rows of the request pool: neither 0 nor in order, so that a forgotten indirection reads another request."""
    return list(range(count, 0, -1))


def fill_request_pool(req_to_token: Tensor, batch: AttentionBatch) -> None:
    """Write the slots of every owned position; the rest is 0, the padding slot, as SGLang's pool starts out."""
    req_to_token.zero_()
    page_size = batch.case.page_size
    offsets = torch.arange(page_size, device=req_to_token.device, dtype=torch.int32)
    for index, row in enumerate(request_rows(batch.case.num_requests)):
        owned = batch.paging.owned[index]
        slots = batch.page_table[index, :owned, None] * page_size + offsets
        req_to_token[row, : owned * page_size] = slots.reshape(-1)


def put_pool(pool: Any, batch: AttentionBatch) -> None:
    """Make SGLang's kv pool use the batch's memory: [pages, page_size, heads, dim] seen as [slots, heads, dim]."""
    for buffers, source in ((pool.k_buffer, batch.k_pool), (pool.v_buffer, batch.v_pool)):
        if buffers[0].shape[0] != source.shape[0] * source.shape[1]:
            raise RuntimeError("the kv pool was built for another number of slots")
        buffers[0] = source.view(-1, *source.shape[2:])


def forward_batch(
    setup: Setup,
    mode: Mode,
    sizes: Lengths,
    new_slots: Tensor,
    *,
    positions: Sequence[int],
    spec_info: Any = None,
) -> Any:
    """A ForwardBatch as `ForwardBatch.init_new` fills it for these modes; new_slots int64 [tokens]."""
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch, ForwardMode

    device = torch.device(setup.device)

    def ints(values: Sequence[int], dtype: torch.dtype = torch.int32) -> Tensor:
        return torch.tensor(list(values), dtype=dtype, device=device)

    count, tokens = len(sizes.prefix), len(positions)
    made = ForwardBatch(
        forward_mode=ForwardMode[MODES[mode]],
        batch_size=count,
        input_ids=torch.zeros(tokens, dtype=torch.int64, device=device),
        req_pool_indices=ints(request_rows(count), torch.int64),
        seq_lens=ints(sizes.seq_lens, torch.int64),
        seq_lens_cpu=torch.tensor(sizes.seq_lens, dtype=torch.int64),
        seq_lens_sum=sum(sizes.seq_lens),
        out_cache_loc=new_slots,
        positions=ints(positions, torch.int64),
    )
    if mode in (Mode.EXTEND, Mode.DRAFT_EXTEND_V2):
        made.extend_prefix_lens = ints(sizes.prefix)
        made.extend_prefix_lens_cpu = list(sizes.prefix)
        made.extend_seq_lens = ints(sizes.extend)
        made.extend_seq_lens_cpu = list(sizes.extend)
        made.extend_num_tokens = tokens
    made.spec_info = spec_info
    return made


def positions_of(sizes: Lengths) -> list[int]:
    """Absolute positions of the new rows, [tokens]."""
    return [p + i for p, e in zip(sizes.prefix, sizes.extend, strict=True) for i in range(e)]


def chain_mask(sizes: Lengths, device: torch.device) -> Tensor:
    """bool [sum(E * (P + E))]: the verify mask of a chain of draft tokens, request after request.

    As `build_tree_kernel_efficient` fills it in TreeMaskMode.FULL_MASK for topk = 1 (sgl_kernel,
    speculative/eagle_tree.cu): every cached key, then the token's ancestors and itself. It knows no window.
    """
    parts = []
    for p, e in zip(sizes.prefix, sizes.extend, strict=True):
        key = torch.arange(p + e, device=device)
        row = torch.arange(e, device=device)[:, None] + p
        parts.append((key <= row).reshape(-1))
    return torch.cat(parts)
