"""Stand-ins for the contracts of FlashInfer's batch prefill wrappers, merge_state and cache append.

What is kept from flashinfer-python 0.6.18 (prefill.py, cascade.py, page.py and their kernels):

- plan() picks the compiled module: window, soft cap and custom mask take effect only if they were
  planned. A window given at run alone is ignored by the element mask; fa2 still starts each query
  tile at the kv tile where that window would begin, fa3 does not even that.
- Queries are aligned to the end of the keys that the call sees.
- A custom mask is flattened per request, row-major [qo_len, kv_len], and packed per request from a
  byte boundary on, bit 0 first. It replaces `causal`; a planned window still applies.
- LSE is log2, [tokens, heads]; merge_state works in log2 too.
- A row with no key: up to 0.6.18 a masked score is the finite -5e4, so such a row comes out as a mean
  of V with an LSE near -5e4; from 0.7.0 on it is out 0 and LSE -inf.
- fa3 refuses a custom mask, and cannot take an empty kv in a paged call.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import torch
from torch import Tensor

from cases.schema import KvLayout
from harness.emulation import kernel
from harness.emulation.flashinfer_state import PlanState, ints, make_state
from harness.emulation.hooks import EmulatedCudaError, Hooks, Launch, RequestCall
from harness.emulation.packing import pack_masks, unpack_bits

LOG2_E = math.log2(math.e)
SENTINEL = -5e4  # math.cuh: `inf = 5e4`; <q, k> of a masked key, before sm_scale (seen on a GPU)
MOST_KEYS = math.log(2.0**31)
SPLIT_KEYS = 512  # keys that fa2 is taken to give one split; the real planner balances CTAs
MAX_SPLITS = 8


class EmulatedFlashInfer:
    """The library object that the FlashInfer adapters take, computed in plain PyTorch on any device."""

    name = "flashinfer"
    is_emulated = True
    workspace_bytes = 1 << 16
    prebuilt: frozenset[str] | None = None

    def __init__(self, version: str = "0.6.18.post1", hooks: Hooks | None = None) -> None:
        self.version = version
        self.hooks = Hooks() if hooks is None else hooks

    @property
    def empty_rows_are_sentinel(self) -> bool:
        major, minor = (int(part) for part in self.version.split(".")[:2])
        return (major, minor) < (0, 7)

    def ragged_wrapper(self, workspace: Tensor, kv_layout: str, backend: str) -> RaggedWrapper:
        return RaggedWrapper(self, workspace, kv_layout, backend)

    def paged_wrapper(self, workspace: Tensor, kv_layout: str, backend: str) -> PagedWrapper:
        return PagedWrapper(self, workspace, kv_layout, backend)

    def merge_state(self, v_a: Tensor, s_a: Tensor, v_b: Tensor, s_b: Tensor) -> tuple[Tensor, Tensor]:
        """v [rows, heads, dim], s log2 [rows, heads] of two key sets -> those of their union."""
        parts = torch.stack([s_a.float(), s_b.float()])
        top = parts.amax(0)
        scale = torch.exp2(parts - top)
        total = scale.sum(0)
        weights = self.hooks.merge("merge_state", scale / total)[..., None]
        v = weights[0] * v_a.float() + weights[1] * v_b.float()
        s = self.hooks.merged_lse("merge_state", torch.log2(total) + top, parts)
        return v.to(v_a.dtype), s

    def append_paged_kv_cache(
        self,
        append_key: Tensor,
        append_value: Tensor,
        batch_indices: Tensor,
        positions: Tensor,
        paged_kv_cache: tuple[Tensor, Tensor],
        kv_indices: Tensor,
        kv_indptr: Tensor,
        kv_last_page_len: Tensor,
        kv_layout: str = "NHD",
    ) -> None:
        """Write rows [n, heads, dim] at `positions` of requests `batch_indices`, both int32 [n]."""
        del kv_last_page_len
        layout = KvLayout(kv_layout)
        page_size = paged_kv_cache[0].shape[1 if layout is KvLayout.NHD else 2]
        page = kv_indices.long()[kv_indptr.long()[batch_indices.long()] + positions.long() // page_size]
        slots = self.hooks.append(page * page_size + positions.long() % page_size)
        for pool, rows in zip(paged_kv_cache, (append_key, append_value), strict=True):
            by_token = pool if layout is KvLayout.NHD else pool.transpose(1, 2)
            if slots.numel() and (int(slots.min()) < 0 or int(slots.max()) >= by_token.shape[0] * page_size):
                raise EmulatedCudaError("illegal memory access: append outside the pool")
            by_token[slots // page_size, slots % page_size] = rows


def _query_tile(state: PlanState, head_dim_vo: int) -> int:
    """Packed rows of a query tile of fa2, from the mean of the batch (utils.cuh, FA2DetermineCtaTileQ; sm_80 on)."""
    requests = max(1, len(state.qo_indptr) - 1)
    mean = state.qo_indptr[-1] * (state.num_qo_heads // state.num_kv_heads) // requests
    if mean > 64 and head_dim_vo < 256:
        return 128
    return 64 if mean > 16 else 16


class _Wrapper:
    """What the two wrappers share: the module flags, the launch, the mask."""

    kernel_name = ""

    def __init__(self, library: EmulatedFlashInfer, workspace: Tensor, kv_layout: str, backend: str) -> None:
        if backend not in ("fa2", "fa3"):
            raise ValueError(f"backend is {backend!r}; the emulation has fa2 and fa3.")
        self._library = library
        self._workspace = workspace
        self._layout = KvLayout(kv_layout)
        self._backend = backend
        self.fills_after_scale = False  # as decode.cuh does, FlashInfer's decode without tensor cores
        self._state: PlanState | None = None

    def reset_workspace_buffer(self, float_workspace_buffer: Tensor, int_workspace_buffer: Tensor) -> None:
        del int_workspace_buffer
        self._workspace = float_workspace_buffer

    def _keep(self, state: PlanState) -> None:
        self._state = self._library.hooks.plan_state(self.kernel_name, self._state, state)

    def _checked(self, q: Tensor, k: Tensor) -> PlanState:
        if self._state is None:
            raise RuntimeError("run() before plan()")
        if q.shape[0] != self._state.qo_indptr[-1]:
            raise ValueError(f"q.shape[0] ({q.shape[0]}) does not match qo_indptr[-1] ({self._state.qo_indptr[-1]}).")
        for tensor, dtype in ((q, self._state.q_dtype), (k, self._state.kv_dtype)):
            if tensor.dtype != dtype:
                raise ValueError(f"The dtype {tensor.dtype} does not match the data type {dtype} of plan().")
        if self._state.packed_mask is not None and self._backend == "fa3":
            raise EmulatedCudaError("fa3: operation not supported (custom mask)")
        return self._state

    def _launch(self, state: PlanState, head_dim_vo: int) -> Launch:
        sentinel = self._library.empty_rows_are_sentinel
        run_window = state.window_left if state.window_left >= 0 else None
        longest = max((length for length in state.kv_lens), default=0)
        splits = min(MAX_SPLITS, -(-longest // SPLIT_KEYS)) if state.split_kv and self._backend == "fa2" else 1
        custom = state.packed_mask is not None
        return Launch(
            kernel=self.kernel_name,
            backend=self._backend,
            num_qo_heads=state.num_qo_heads,
            num_kv_heads=state.num_kv_heads,
            sm_scale=state.sm_scale,
            soft_cap=state.logits_soft_cap if state.use_soft_cap else 0.0,
            window=(
                state.window_left if state.use_window else -1,
                0 if state.causal and not custom else -1,
            ),
            tile_start_left=run_window if self._backend == "fa2" and not state.use_window else None,
            query_tile=_query_tile(state, head_dim_vo),
            num_splits=max(1, splits),
            mask_fill=self._masked_score(state) if sentinel else -torch.inf,
            sum_rounded=self._backend == "fa2",
            page_size=state.page_size,
        )

    def _masked_score(self, state: PlanState) -> float:
        """Natural score of a masked key: the sentinel is put in before sm_scale, but after a soft cap."""
        after_scale = state.use_soft_cap or self.fills_after_scale
        return SENTINEL / LOG2_E if after_scale else SENTINEL * state.sm_scale

    @staticmethod
    def _lse(launch: Launch, natural: Tensor) -> Tensor:
        """Log2 LSE. A maximum that is still the sentinel is not multiplied by sm_scale (prefill.cuh, finalize_m)."""
        if launch.mask_fill == -torch.inf:
            return natural * LOG2_E
        above = natural - launch.mask_fill  # ln of a count of keys, for a row whose maximum is the sentinel
        return torch.where(above < MOST_KEYS, SENTINEL + above * LOG2_E, natural * LOG2_E)

    def _finish(
        self,
        state: PlanState,
        q: Tensor,
        head_dim_vo: int,
        fetch: Any,
        out: Tensor | None,
        lse: Tensor | None,
        return_lse: bool,
    ) -> Any:
        shape = (q.shape[0], q.shape[1], head_dim_vo)
        if out is None:
            out = q.new_empty(shape)
        elif out.shape != shape or out.dtype != q.dtype:
            raise ValueError(f"out is {tuple(out.shape)} {out.dtype}; expected {shape} {q.dtype}.")
        launch, hooks = self._launch(state, head_dim_vo), self._library.hooks
        natural = torch.full(shape[:2], torch.nan, dtype=torch.float32, device=q.device)
        rows = list(itertools.pairwise(state.qo_indptr))
        mask = self._mask_reader(launch, state)
        kernel.run_requests(launch, hooks, q, rows, list(state.kv_lens), fetch(launch), out, natural, custom_mask=mask)
        result = hooks.output(launch, out)
        if not return_lse:
            return result
        values = hooks.lse(launch, self._lse(launch, natural))
        if lse is not None:
            lse.copy_(values)
            values = lse
        return result, values

    def _mask_reader(self, launch: Launch, state: PlanState) -> Any:
        if state.packed_mask is None or state.mask_indptr is None:
            return None
        packed, indptr = self._library.hooks.mask_packing(launch, state.packed_mask, state.mask_indptr)

        def read(index: int) -> Tensor:
            qo_len = state.qo_indptr[index + 1] - state.qo_indptr[index]
            count = qo_len * state.kv_lens[index]
            start = int(indptr[index])
            bits = unpack_bits(packed[start : start + -(-count // 8)])
            padded = torch.nn.functional.pad(bits[:count], (0, max(0, count - bits.numel())))
            return padded.view(qo_len, state.kv_lens[index])

        return read

    def forward_return_lse(
        self,
        q: Tensor,
        *args: Any,
        causal: bool = False,
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        sm_scale: float | None = None,
    ) -> Any:
        """The deprecated call that sets causal, window, cap and scale at run; the module stays the planned one."""
        if self._state is None:
            raise RuntimeError("forward_return_lse() before plan()")
        self._state = dataclasses.replace(
            self._state,
            causal=causal,
            window_left=window_left,
            logits_soft_cap=logits_soft_cap or 0.0,
            sm_scale=q.shape[-1] ** -0.5 if sm_scale is None else sm_scale,
        )
        return self.run(q, *args, return_lse=True)  # type: ignore[attr-defined]


class RaggedWrapper(_Wrapper):
    """BatchPrefillWithRaggedKVCacheWrapper."""

    kernel_name = "flashinfer.ragged"

    def plan(
        self,
        qo_indptr: Tensor,
        kv_indptr: Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        head_dim_vo: int | None = None,
        *,
        custom_mask: Tensor | None = None,
        causal: bool = False,
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        sm_scale: float | None = None,
        q_data_type: torch.dtype = torch.float16,
        kv_data_type: torch.dtype | None = None,
        disable_split_kv: bool = False,
    ) -> None:
        del head_dim_vo
        qo, kv = ints(qo_indptr), ints(kv_indptr)
        lens = tuple(b - a for a, b in itertools.pairwise(kv))
        packed, indptr = pack_masks(custom_mask, qo, lens)
        self._keep(
            make_state(
                qo,
                kv,
                lens,
                None,
                1,
                (num_qo_heads, num_kv_heads, head_dim_qk),
                (causal, window_left, logits_soft_cap, sm_scale),
                (packed, indptr),
                disable_split_kv,
                (q_data_type, kv_data_type),
            )
        )

    def run(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        out: Tensor | None = None,
        lse: Tensor | None = None,
        return_lse: bool = False,
    ) -> Any:
        """q [tokens, Hq, D], k and v packed [kv tokens, Hk, D]."""
        state = self._checked(q, k)
        hooks = self._library.hooks

        def fetch(launch: Launch) -> Any:
            del launch
            return lambda request: kernel.ragged_fetch(request, hooks, k, v, state.kv_indptr[request.index])

        return self._finish(state, q, v.shape[-1], fetch, out, lse, return_lse)


class PagedWrapper(_Wrapper):
    """BatchPrefillWithPagedKVCacheWrapper."""

    kernel_name = "flashinfer.paged"

    def plan(
        self,
        qo_indptr: Tensor,
        paged_kv_indptr: Tensor,
        paged_kv_indices: Tensor,
        paged_kv_last_page_len: Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        page_size: int,
        head_dim_vo: int | None = None,
        *,
        custom_mask: Tensor | None = None,
        causal: bool = False,
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        sm_scale: float | None = None,
        q_data_type: torch.dtype = torch.float16,
        kv_data_type: torch.dtype | None = None,
        disable_split_kv: bool = False,
    ) -> None:
        del head_dim_vo
        qo, indptr = ints(qo_indptr), ints(paged_kv_indptr)
        last = ints(paged_kv_last_page_len)
        # page.py get_seq_lens: an empty request whose last_page_len is not 0 counts keys that it has not
        lens = tuple(
            max(0, b - a - 1) * page_size + tail for a, b, tail in zip(indptr[:-1], indptr[1:], last, strict=True)
        )
        packed, mask_indptr = pack_masks(custom_mask, qo, lens)
        self._keep(
            make_state(
                qo,
                indptr,
                lens,
                paged_kv_indices,
                page_size,
                (num_qo_heads, num_kv_heads, head_dim_qk),
                (causal, window_left, logits_soft_cap, sm_scale),
                (packed, mask_indptr),
                disable_split_kv,
                (q_data_type, kv_data_type),
            )
        )

    def run(
        self,
        q: Tensor,
        paged_kv_cache: tuple[Tensor, Tensor],
        *,
        out: Tensor | None = None,
        lse: Tensor | None = None,
        return_lse: bool = False,
        window_left: int | None = None,
    ) -> Any:
        """q [tokens, Hq, D]; pools [pages, page_size, Hk, D] (NHD) or [pages, Hk, page_size, D] (HND)."""
        k_pool, v_pool = paged_kv_cache
        state = self._checked(q, k_pool)
        if window_left is not None and window_left != state.window_left:
            raise AssertionError("window_left differs from that of plan()")
        if self._backend == "fa3" and 0 in state.kv_lens:
            raise EmulatedCudaError("illegal memory access: fa3 paged call over a request with no keys")
        hooks = self._library.hooks
        indices = state.kv_indices
        assert indices is not None

        def pages(request: RequestCall) -> Tensor:
            return indices[state.kv_indptr[request.index] : state.kv_indptr[request.index + 1]]

        def fetch(launch: Launch) -> Any:
            del launch
            return lambda request: kernel.paged_fetch(request, hooks, k_pool, v_pool, pages(request), self._layout)

        return self._finish(state, q, v_pool.shape[-1], fetch, out, lse, return_lse)
