"""PyTorch's own kernels: `torch-varlen`, `torch-sdpa`, `torch-flex`.

None of them pages: the new rows are written to the pool, and the keys of each request are gathered from
it by plain indexing, so a wrong page table is still a wrong answer. The masks are written here, from
positions, and share nothing with the references.
"""

from __future__ import annotations

import inspect
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cases.batch import AttentionBatch, build_batch
from cases.ragged import indptr, kv_rows, query_rows
from cases.schema import AttentionCase, KvLayout, Poison
from harness.adapters.capabilities import Capabilities
from harness.adapters.protocol import PROTOCOL_VERSION, AttentionOutput, EmptyRow, LseBase

BOTH_LAYOUTS = (KvLayout.NHD, KvLayout.HND)
RECOMPILE_LIMIT = 256
FLEX_BLOCK = 128  # create_block_mask's default


@dataclass(frozen=True, slots=True)
class PackedPlan:
    """One call over packed keys.

    kv_slots:  int64 [total_kv] pool slot of every key, request after request
    q_request, q_position: int64 [total_q]; kv_request, kv_position: int64 [total_kv]
    cu_seqlens_q, cu_seqlens_k: int32 [num_requests+1]
    q_bounds, kv_bounds: the same as host integers
    window_left: -1 is off
    """

    kv_slots: Tensor
    q_request: Tensor
    q_position: Tensor
    kv_request: Tensor
    kv_position: Tensor
    cu_seqlens_q: Tensor
    cu_seqlens_k: Tensor
    q_bounds: tuple[int, ...]
    kv_bounds: tuple[int, ...]
    max_seqlen_q: int
    max_seqlen_k: int
    causal: bool
    window_left: int
    logits_soft_cap: float
    sm_scale: float


def plan_packed(batch: AttentionBatch) -> PackedPlan:
    """Lengths, positions and slots of all keys, the new rows included."""
    case = batch.case
    rows, keys = query_rows(case, batch.device), kv_rows(case, batch.device)
    cu_seqlens_k = indptr([r.kv_len for r in case.requests])
    return PackedPlan(
        kv_slots=batch.paging.slots(keys),
        q_request=rows.request.clone(),  # those are kept, and a plan may be written to
        q_position=rows.position.clone(),
        kv_request=keys.request.clone(),
        kv_position=keys.position.clone(),
        cu_seqlens_q=batch.qo_indptr,
        cu_seqlens_k=cu_seqlens_k.to(batch.device),
        q_bounds=tuple(int(at) for at in batch.qo_indptr.tolist()),
        kv_bounds=tuple(int(at) for at in cu_seqlens_k.tolist()),
        max_seqlen_q=case.max_extend_len,
        max_seqlen_k=case.max_kv_len,
        causal=case.causal,
        window_left=-1 if case.window_left is None else case.window_left,
        logits_soft_cap=case.logits_soft_cap or 0.0,
        sm_scale=case.scale,
    )


def gather(pool: Tensor, slots: Tensor, layout: KvLayout) -> Tensor:
    """[n, heads, dim] rows of a pool."""
    by_token = pool if layout is KvLayout.NHD else pool.transpose(1, 2)
    page_size = by_token.shape[1]
    return by_token[slots // page_size, slots % page_size]


class _TorchAdapter:
    """The declarations that the torch adapters share."""

    protocol_version = PROTOCOL_VERSION
    lse_base = LseBase.NATURAL
    lse_includes_sink = False
    empty_row = EmptyRow.UNSPECIFIED  # every row of a case sees its own key
    poison = Poison.NAN  # only the slots of true keys are gathered
    packages: tuple[str, ...] = ("torch",)
    devices: tuple[str, ...] = ("cpu", "cuda")

    def plan(self, batch: AttentionBatch) -> PackedPlan:
        return plan_packed(batch)

    @staticmethod
    def _keys(plan: PackedPlan, batch: AttentionBatch) -> tuple[Tensor, Tensor]:
        """Write the new rows, then read every key back: k and v packed [total_kv, Hk, dim]."""
        batch.write_new_rows()
        layout = batch.case.kv_layout
        return gather(batch.k_pool, plan.kv_slots, layout), gather(batch.v_pool, plan.kv_slots, layout)


class TorchVarlen(_TorchAdapter):
    """torch.nn.attention.varlen.varlen_attn: FlashAttention 2 or 3 as torch builds it, on packed keys."""

    name = "torch-varlen"
    devices = ("cuda",)
    capabilities = Capabilities(softcap=False, bidirectional=True, kv_layouts=BOTH_LAYOUTS)

    def __init__(self) -> None:
        from torch.nn.attention.varlen import AuxRequest, varlen_attn

        self._varlen_attn: Callable[..., Any] = varlen_attn
        self._want_lse = AuxRequest(lse=True)
        self._has_gqa = "enable_gqa" in inspect.signature(varlen_attn).parameters

    def run(self, plan: PackedPlan, batch: AttentionBatch) -> AttentionOutput:
        k, v = self._keys(plan, batch)
        options: dict[str, Any] = {}
        if batch.case.group_size > 1:
            if self._has_gqa:
                options["enable_gqa"] = True
            else:
                k, v = (x.repeat_interleave(batch.case.group_size, 1) for x in (k, v))
        out, lse = self._varlen_attn(
            batch.q,
            k,
            v,
            plan.cu_seqlens_q,
            plan.cu_seqlens_k,
            plan.max_seqlen_q,
            plan.max_seqlen_k,
            return_aux=self._want_lse,
            scale=plan.sm_scale,
            window_size=(plan.window_left, 0 if plan.causal else -1),
            **options,
        )
        # Documented as [total_q, heads]; torch 2.11 to 2.13 return what the kernel writes, [heads, total_q].
        return AttentionOutput(out, lse.t().contiguous() if lse.shape[0] == batch.case.num_qo_heads else lse)


class TorchSdpa(_TorchAdapter):
    """torch.nn.functional.scaled_dot_product_attention, request by request, with an explicit bool mask."""

    name = "torch-sdpa"
    capabilities = Capabilities(
        dtypes=("bfloat16", "float16", "float32"),
        softcap=False,
        bidirectional=True,
        head_dim_vo_differs=True,
        head_dim_multiple=1,
        max_head_dim=1024,
        kv_layouts=BOTH_LAYOUTS,
    )

    def run(self, plan: PackedPlan, batch: AttentionBatch) -> AttentionOutput:
        k, v = self._keys(plan, batch)
        out = batch.empty_output()
        for i in range(batch.case.num_requests):
            rows = slice(plan.q_bounds[i], plan.q_bounds[i + 1])
            keys = slice(plan.kv_bounds[i], plan.kv_bounds[i + 1])
            if rows.start == rows.stop:
                continue
            part = torch.nn.functional.scaled_dot_product_attention(
                batch.q[rows].transpose(0, 1)[None],
                k[keys].transpose(0, 1)[None],
                v[keys].transpose(0, 1)[None],
                attn_mask=_mask(plan, rows, keys),
                scale=plan.sm_scale,
                enable_gqa=batch.case.group_size > 1,
            )
            out[rows] = part[0].transpose(0, 1)
        return AttentionOutput(out)


def _mask(plan: PackedPlan, rows: slice, keys: slice) -> Tensor:
    """bool [rows, keys] of one request: how far a key lies behind the query decides."""
    behind = plan.q_position[rows, None] - plan.kv_position[None, keys]
    mask = torch.ones_like(behind, dtype=torch.bool)
    if plan.causal:
        mask &= behind >= 0
    if plan.window_left >= 0:
        mask &= behind <= plan.window_left
    return mask


class _TorchFlex(_TorchAdapter):
    """torch.nn.attention.flex_attention over all requests at once, packed.

    A query's keys are one interval of the packed keys, so the mask is two captured tensors whatever the
    window: one compiled kernel serves every mask.
    """

    capabilities = Capabilities(
        dtypes=("bfloat16", "float16", "float32"),
        bidirectional=True,
        head_dim_multiple=16,
        kv_layouts=BOTH_LAYOUTS,
    )

    def __init__(self, attention: Callable[..., Any], compiled: bool) -> None:
        from torch.nn.attention.flex_attention import AuxRequest, create_block_mask

        self._attention, self._create_block_mask = attention, create_block_mask
        self._want_lse, self._compiled = AuxRequest(lse=True), compiled

    def run(self, plan: PackedPlan, batch: AttentionBatch) -> AttentionOutput:
        k, v = self._keys(plan, batch)
        case, device = batch.case, batch.device
        mask = self._create_block_mask(_mask_mod(plan), None, None, case.total_q, case.total_kv, device=str(device))
        has_lse = not (self._compiled and device.type == "cpu")  # inductor's CPU kernel gives none
        result = self._attention(
            batch.q.transpose(0, 1)[None],
            k.transpose(0, 1)[None],
            v.transpose(0, 1)[None],
            score_mod=_score_mod(plan, device),
            block_mask=mask,
            scale=plan.sm_scale,
            enable_gqa=case.group_size > 1,
            **({"return_aux": self._want_lse} if has_lse else {}),
        )
        out, lse = (result[0], result[1].lse[0].transpose(0, 1).contiguous()) if has_lse else (result, None)
        return AttentionOutput(out[0].transpose(0, 1).contiguous(), lse)


def _mask_mod(plan: PackedPlan) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    starts = plan.cu_seqlens_k.long()[plan.q_request]
    lens = plan.cu_seqlens_k.diff().long()[plan.q_request]
    first = starts + ((plan.q_position - plan.window_left).clamp(min=0) if plan.window_left >= 0 else 0)
    last = starts + (plan.q_position + 1 if plan.causal else lens)

    def visible(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        del b, h
        return (k >= first[q]) & (k < last[q])

    return visible


def _score_mod(
    plan: PackedPlan, device: torch.device
) -> Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor] | None:
    if plan.logits_soft_cap == 0:
        return None
    cap = torch.tensor(plan.logits_soft_cap, dtype=torch.float32, device=device)

    def capped(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        del b, h, q, k
        return cap * torch.tanh(score / cap)

    return capped


class TorchFlex(_TorchFlex):
    """Compiled by inductor, as one graph or not at all: it never falls back to eager."""

    name = "torch-flex"

    def __init__(self) -> None:
        import torch._dynamo
        from torch.nn.attention.flex_attention import flex_attention

        # One kernel per dtype, head count, head dim and cap; past the limit dynamo would give up.
        torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, RECOMPILE_LIMIT)
        super().__init__(torch.compile(flex_attention, dynamic=True, fullgraph=True), compiled=True)
        self._prepared: set[tuple[object, ...]] = set()

    def prepare(self, case: AttentionCase) -> None:
        """Compile the kernel that `case` needs, by running it once: seconds on a GPU, more on a CPU.

        Dynamic shapes still tell one block of rows or keys from several.
        """
        kind = (
            case.dtype,
            case.num_qo_heads,
            case.num_kv_heads,
            case.head_dim_qk,
            case.logits_soft_cap is None,
            case.sm_scale,
            min(2, -(-case.total_q // FLEX_BLOCK)),
            min(2, -(-case.total_kv // FLEX_BLOCK)),
            case.total_q == 1,
        )
        if kind in self._prepared or self.capabilities.unsupported(case) is not None:
            return
        batch = build_batch(case, "cuda" if torch.cuda.is_available() else "cpu")
        self.run(self.plan(batch), batch)
        self._prepared.add(kind)


class TorchFlexEager(_TorchFlex):
    """The same call uncompiled: torch materialises the scores. For machines that cannot compile."""

    name = "torch-flex-eager"
    devices = ("cpu", "cuda")
    p_normalised = True  # _higher_order_ops/flex_attention.py, math_attention: softmax, then a cast

    def __init__(self) -> None:
        from torch.nn.attention.flex_attention import flex_attention

        super().__init__(flex_attention, compiled=False)


def cannot_compile() -> str | None:
    """Why inductor cannot compile for the CPU here, or None. It calls a C++ compiler."""
    return None if any(map(shutil.which, ("g++", "clang++", "c++"))) else "no C++ compiler for torch.compile"
