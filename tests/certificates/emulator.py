"""A numerics-faithful emulation of FlashAttention-2 and of FlashInfer's merge path, with faults.

Tiles of keys, fp32 scores in base 2, P rounded to its dtype relative to the running maximum, fp32
accumulation, output in the dtype of q; two legs (cached prefix, new rows) are merged by their LSE
from partial outputs in that dtype. Keys are read through the page table, so stale and foreign slots
are really there. It shares no code with the references: `Reads` states what a kernel would read.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from cases.batch import AttentionBatch
from cases.schema import AttentionCase, KvLayout

LOG2E = math.log2(math.e)


@dataclass
class Reads:
    """What a kernel reads for one request: slots of its keys in order (stale ones of its own pages
    follow), and per query row the range of them that the mask lets through, less the dropped ones."""

    case: AttentionCase
    request: int
    k_slots: Tensor
    v_slots: Tensor
    begin: Tensor
    end: Tensor
    dropped: Tensor  # bool [len(k_slots)]
    foreign: Tensor  # slots of another request, or stale ones
    kv_len: int
    prefix_len: int

    @property
    def seen(self) -> range:
        """The keys that the last row sees."""
        return range(int(self.begin[-1]), int(self.end[-1]))


@dataclass(frozen=True)
class Kernel:
    """How the emulated kernel computes; the second half are faults."""

    tile: int = 64
    legs: int = 1
    p_dtype: torch.dtype | None = None  # None: that of q
    round_row_sum: bool = False  # FlashInfer sums P after rounding, FlashAttention before
    log2_lse: bool = False
    tanh_bits: int = 24
    splits: int = 1  # partial outputs in fp32

    reads: Callable[[Reads], None] | None = None
    scale_factor: float = 1.0
    softcap: str = "right"  # missing | before scale | after mask
    sink: str = "right"  # ignored | base 2 | scaled | next head | both legs
    kv_head_shift: int = 0
    q_head_shift: int = 0
    merge_lse: str = "right"  # mixed bases | bf16
    rescale: bool = True
    mask_fill: str = "right"  # added -1e4 | max over masked
    accumulator: torch.dtype = torch.float32
    used_dims: float = 1.0

    def replace(self, **changes: object) -> Kernel:
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]


def emulate(batch: AttentionBatch, kernel: Kernel) -> tuple[Tensor, Tensor]:
    """out [total_q, Hq, Dvo] in the dtype of q, and natural lse [total_q, Hq] with the sink in it.

    The new rows must be in the pool (`batch.write_new_rows()`).
    """
    case = batch.case
    k_pool, v_pool = (_by_slot(pool, case) for pool in (batch.k_pool, batch.v_pool))
    outs, lses, start = [], [], 0
    for i, request in enumerate(case.requests):
        if request.extend_len == 0:
            continue
        reads = _right_reads(batch, i)
        if kernel.reads is not None:
            kernel.reads(reads)
        q = batch.q[start : start + request.extend_len]
        start += request.extend_len
        out, lse = _request(case, kernel, q, k_pool[reads.k_slots], v_pool[reads.v_slots], reads, batch.data.sinks)
        outs.append(out)
        lses.append(lse)
    return torch.cat(outs), torch.cat(lses)


def _by_slot(pool: Tensor, case: AttentionCase) -> Tensor:
    """float32 [slots, Hkv, dim]"""
    by_page = pool if case.kv_layout is KvLayout.NHD else pool.transpose(1, 2)
    return by_page.float().reshape(-1, case.num_kv_heads, pool.shape[-1])


def _right_reads(batch: AttentionBatch, i: int) -> Reads:
    case, paging, request = batch.case, batch.paging, batch.case.requests[i]
    page = case.page_size

    def slots(j: int) -> Tensor:
        pages = paging.page_table[j, : paging.owned[j]].long()
        return (pages[:, None] * page + torch.arange(page)).flatten()

    own = slots(i)
    position = torch.arange(request.extend_len) + request.prefix_len
    end = position + 1 if case.causal else torch.full_like(position, request.kv_len)
    begin = torch.zeros_like(end) if case.window_left is None else (position - case.window_left).clamp(min=0)
    other = slots((i + 1) % case.num_requests) if case.num_requests > 1 else own[request.kv_len :]
    return Reads(
        case,
        i,
        own.clone(),
        own.clone(),
        begin,
        end,
        torch.zeros(len(own), dtype=torch.bool),
        other,
        request.kv_len,
        request.prefix_len,
    )


def _request(
    case: AttentionCase, kernel: Kernel, q: Tensor, k: Tensor, v: Tensor, reads: Reads, sinks: Tensor | None
) -> tuple[Tensor, Tensor]:
    columns = torch.arange(len(k))
    keep = (columns >= reads.begin[:, None]) & (columns < reads.end[:, None]) & ~reads.dropped
    last = int(reads.end.max())
    k, v, keep = k[:last], v[:last], keep[:, :last]
    kv_head = (torch.arange(case.num_qo_heads) // case.group_size + kernel.kv_head_shift) % case.num_kv_heads
    q = q.roll(-kernel.q_head_shift, 1)
    sink = None if sinks is None else _sink(case, kernel, sinks)
    if kernel.legs == 1:
        out, lse2 = _pass(case, kernel, q, k, v, keep, kv_head, sink)
    else:
        cut = min(reads.prefix_len, last)
        both = kernel.sink == "both legs"
        first = _pass(case, kernel, q, k[:cut], v[:cut], keep[:, :cut], kv_head, sink if both else None)
        second = _pass(case, kernel, q, k[cut:], v[cut:], keep[:, cut:], kv_head, sink)
        out, lse2 = _merge(kernel, q.dtype, *first, *second)
    lse = lse2.double() / LOG2E if kernel.log2_lse else (lse2 / LOG2E).double()
    return out.to(q.dtype), lse


def _sink(case: AttentionCase, kernel: Kernel, sinks: Tensor) -> Tensor:
    """[Hq] in base 2"""
    sink = sinks.float() * LOG2E
    if kernel.sink == "ignored":
        return torch.full_like(sink, -torch.inf)
    if kernel.sink == "base 2":
        return sinks.float()
    if kernel.sink == "scaled":
        return sink * case.scale
    return sink.roll(1) if kernel.sink == "next head" else sink


def _scores(case: AttentionCase, kernel: Kernel, q: Tensor, k: Tensor) -> Tensor:
    """Natural capped scores [Hq, rows, keys]"""
    dims = max(1, int(q.shape[-1] * kernel.used_dims))
    raw = torch.matmul(q.float().permute(1, 0, 2)[..., :dims], k.permute(1, 2, 0)[:, :dims])
    scale = case.scale * case.k_scale * kernel.scale_factor
    cap = case.logits_soft_cap
    if cap is None or kernel.softcap == "missing":
        return raw * scale
    if kernel.softcap == "before scale":
        return cap * _tanh(raw / cap, kernel.tanh_bits) * scale
    return cap * _tanh(raw * (scale / cap), kernel.tanh_bits)


def _tanh(x: Tensor, bits: int) -> Tensor:
    exact = torch.tanh(x)
    if bits >= 24:
        return exact
    step = torch.exp2(torch.floor(torch.log2(exact.abs().clamp(min=2.0**-60))) - bits + 1)
    return torch.round(exact / step) * step


def _pass(
    case: AttentionCase,
    kernel: Kernel,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keep: Tensor,
    kv_head: Tensor,
    sink: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """out [rows, Hq, Dvo] rounded to the dtype of q, and the base-2 LSE [rows, Hq]."""
    p_dtype = kernel.p_dtype or q.dtype
    states = []
    size = -(-max(1, len(k)) // kernel.splits)
    for start in range(0, max(1, len(k)), size):
        states.append(_stream(case, kernel, q, k, v, keep, kv_head, range(start, min(len(k), start + size)), p_dtype))
    top = torch.stack([s[0] for s in states]).amax(0)
    if sink is not None:
        top = torch.maximum(top, sink[:, None])
    safe = top.clamp(min=-1e30)
    acc = torch.zeros_like(states[0][2])
    total = torch.zeros_like(top)
    for part_top, part_sum, part_acc in states:
        weight = torch.exp2(part_top - safe)
        total += part_sum * weight
        acc += part_acc * weight[..., None]
    if sink is not None:
        total = total + torch.exp2(sink[:, None] - safe)
    out = acc / torch.where(total > 0, total, 1.0)[..., None] * case.v_scale
    lse2 = torch.where(total > 0, safe + torch.log2(total), -torch.inf)
    return out.permute(1, 0, 2).to(q.dtype).float(), lse2.T


def _stream(
    case: AttentionCase,
    kernel: Kernel,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keep: Tensor,
    kv_head: Tensor,
    keys: range,
    p_dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    """Online softmax over tiles: running maximum and sum [Hq, rows], accumulator [Hq, rows, Dvo]."""
    top = torch.full((q.shape[1], q.shape[0]), -torch.inf)
    total = torch.zeros_like(top)
    acc = torch.zeros((*top.shape, v.shape[-1]), dtype=kernel.accumulator)
    for begin in range(keys.start, keys.stop, kernel.tile):
        at = slice(begin, min(keys.stop, begin + kernel.tile))
        mask = keep[:, at]
        if not bool(mask.any()) and kernel.mask_fill == "right":
            continue
        s = _scores(case, kernel, q, k[at][:, kv_head])
        if kernel.mask_fill == "added -1e4":
            s = (s - 1e4 * ~mask) * LOG2E
        elif kernel.softcap == "after mask" and case.logits_soft_cap is not None:
            s = s.masked_fill(~mask, -case.logits_soft_cap) * LOG2E
        else:
            s = s * LOG2E
        peak = s.amax(-1)
        if kernel.mask_fill != "added -1e4" and kernel.softcap != "after mask":
            s = s.masked_fill(~mask, -torch.inf)
        if kernel.mask_fill != "max over masked":
            peak = s.amax(-1)
        new_top = torch.maximum(top, peak)
        safe = new_top.clamp(min=-1e30)
        p = torch.exp2(s - safe[..., None])
        rounded = _round(p, p_dtype)
        shrink = torch.exp2(top - safe)
        total = total * shrink + (rounded if kernel.round_row_sum else p).sum(-1)
        carried = acc.float() * shrink[..., None] if kernel.rescale else acc.float()
        acc = (carried + torch.matmul(rounded, v[at][:, kv_head].permute(1, 0, 2))).to(kernel.accumulator)
        top = new_top
    return top, total, acc.float()


def _round(p: Tensor, dtype: torch.dtype) -> Tensor:
    return p if dtype is torch.float32 else p.to(dtype).float()


def _merge(
    kernel: Kernel, dtype: torch.dtype, out1: Tensor, lse1: Tensor, out2: Tensor, lse2: Tensor
) -> tuple[Tensor, Tensor]:
    if kernel.merge_lse == "mixed bases":
        lse1 = lse1 / LOG2E
    if kernel.merge_lse == "bf16":
        lse1, lse2 = ((lse / LOG2E).to(torch.bfloat16).float() * LOG2E for lse in (lse1, lse2))
    top = torch.maximum(lse1, lse2)
    safe = top.clamp(min=-1e30)
    w1, w2 = torch.exp2(lse1 - safe), torch.exp2(lse2 - safe)
    total = w1 + w2
    out = (out1 * w1[..., None] + out2 * w2[..., None]) / torch.where(total > 0, total, 1.0)[..., None]
    return out.to(dtype).float(), safe + torch.log2(total)
