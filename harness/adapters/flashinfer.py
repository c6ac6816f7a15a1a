"""FlashInfer paths: `flashinfer-swa-merge`, `flashinfer-paged-fa2`, `flashinfer-paged-fa3`.

The library is handed in as an object with the few callables used (`FlashInferLibrary`), so that the
same code runs on the real kernels and on their emulation. Wrappers and workspaces are kept and
planned again for every case, as a serving engine keeps them.
"""

from __future__ import annotations

import dataclasses
import itertools
from abc import ABC, abstractmethod
from typing import Any, Protocol

import torch
from torch import Tensor

from cases.batch import AttentionBatch, build_batch
from cases.recipes import torch_dtype
from cases.schema import AttentionCase, KvLayout, Poison, Request
from harness.adapters.capabilities import Capabilities
from harness.adapters.flashinfer_modules import module_name
from harness.adapters.flashinfer_plans import (
    PagedPass,
    RaggedPass,
    SinglePagedPlan,
    SwaMergePlan,
    plan_single_paged,
    plan_swa_merge,
)
from harness.adapters.protocol import PROTOCOL_VERSION, AttentionOutput, EmptyRow, LseBase

INT_WORKSPACE_BYTES = 8 * 1024 * 1024  # what the wrappers allocate for themselves
NAN_BYTE = 0xFF  # every float dtype reads 0xFF.. as NaN, every integer as -1


class FlashInferLibrary(Protocol):
    """The callables of flashinfer that the adapters use.

    Wrappers are those of flashinfer.prefill; `merge_state` and `append_paged_kv_cache` the functions of
    the package's top level.
    """

    version: str
    is_emulated: bool
    workspace_bytes: int
    prebuilt: frozenset[str] | None  # names of the modules that can be had; None: any, built when first used

    def ragged_wrapper(self, workspace: Tensor, kv_layout: str, backend: str) -> Any: ...

    def paged_wrapper(self, workspace: Tensor, kv_layout: str, backend: str) -> Any: ...

    def merge_state(self, v_a: Tensor, s_a: Tensor, v_b: Tensor, s_b: Tensor) -> tuple[Tensor, Tensor]: ...

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
    ) -> None: ...


class _Wrappers:
    """Wrappers by kind, layout, backend and device, over one float workspace per device."""

    def __init__(self, library: FlashInferLibrary) -> None:
        self._library = library
        self._float: dict[str, Tensor] = {}
        self._int: dict[tuple[str, ...], Tensor] = {}
        self._made: dict[tuple[str, ...], Any] = {}

    def get(self, kind: str, layout: KvLayout, backend: str, device: torch.device, dirty: bool) -> Any:
        """The wrapper; its scratch memory filled with NaN bytes first if `dirty`."""
        key = (kind, str(layout), backend, str(device))
        if str(device) not in self._float:
            self._float[str(device)] = torch.zeros(self._library.workspace_bytes, dtype=torch.uint8, device=device)
        floats = self._float[str(device)]
        if key not in self._made:
            make = self._library.ragged_wrapper if kind == "ragged" else self._library.paged_wrapper
            wrapper = make(floats, str(layout), backend)
            ints = torch.zeros(INT_WORKSPACE_BYTES, dtype=torch.uint8, device=device)
            wrapper.reset_workspace_buffer(floats, ints)
            self._int[key], self._made[key] = ints, wrapper
        if dirty:
            floats.fill_(NAN_BYTE)
            self._int[key].fill_(NAN_BYTE)
        return self._made[key]


def _only_one_split(case: AttentionCase) -> str | None:
    splits = case.execution.num_splits
    return (
        None if splits in (None, 1) else "FlashInfer takes no split count; only 1 (disable_split_kv) can be asked for"
    )


def _no_split_switch(case: AttentionCase) -> str | None:
    return None if case.execution.num_splits in (None, 1) else "fa3 of FlashInfer never splits the kv"


def _no_empty_kv(case: AttentionCase) -> str | None:
    if any(r.kv_len == 0 for r in case.requests):
        return "fa3 paged prefill of FlashInfer up to 0.6.18 reads out of bounds for a request with no keys"
    return None


HEAD_DIMS = (64, 128, 256)  # fa2 swizzles by 64 columns: others are truncated or read out of bounds


class _FlashInferAdapter(ABC):
    """The declarations that the FlashInfer adapters share."""

    protocol_version = PROTOCOL_VERSION
    lse_base = LseBase.LOG2
    lse_includes_sink = False
    empty_row = EmptyRow.UNSPECIFIED  # by version: a finite sentinel up to 0.6.18, then 0 and -inf
    poison = Poison.NAN  # page tails are masked on load
    packages: tuple[str, ...] = ("flashinfer-python", "apache-tvm-ffi")
    backend = "fa2"
    row_sum_dtype = "input"  # prefill.cuh compute_sfm_v: m16k16_rowsum over the 16-bit fragments
    rounded_splits = True  # batch_prefill.cu: DTypeO* tmp_v
    masked_score: float | None = -5e4  # math.cuh `inf`, before sm_scale; see reports/findings/
    merge_legs = 1

    name: str
    capabilities: Capabilities
    devices: tuple[str, ...]

    def __init__(self, library: FlashInferLibrary) -> None:
        self.library = library
        self._wrappers = _Wrappers(library)
        self._prepared: set[AttentionCase] = set()
        if library.is_emulated:
            self.name = f"{type(self).name}@emulated"
            self.devices = ("cpu",)
            self.packages = ()
        else:
            self.devices = ("cuda",)
        if library.prebuilt is not None:
            self.capabilities = self._narrowed(library.prebuilt)

    def _modules(self, dtype: str, head_dim: int, window: bool, soft_cap: bool) -> set[str]:
        """The modules that such a case needs."""
        windows = {window} if self.merge_legs == 1 else {window, False}  # the prefix leg has no window of its own
        return {module_name(dtype, head_dim, w, soft_cap, self.backend) for w in windows}

    def _narrowed(self, prebuilt: frozenset[str]) -> Capabilities:
        """The class's capabilities, less what no module was built for."""
        declared = type(self).capabilities
        switches = (False, True)
        grid = itertools.product(declared.dtypes, declared.head_dims or HEAD_DIMS, switches, switches)
        taken = [(dtype, dim) for dtype, dim, *masks in grid if self._modules(dtype, dim, *masks) <= prebuilt]

        def rule(case: AttentionCase) -> str | None:
            masks = (case.window_left is not None, case.logits_soft_cap is not None)
            missing = self._modules(case.dtype, case.head_dim_qk, *masks) - prebuilt
            return f"JIT is disabled and {min(missing)} is not prebuilt" if missing else None

        narrowed = dataclasses.replace(declared, rules=(*declared.rules, rule))
        if not taken:  # the rule says of each case what it misses
            return narrowed
        return dataclasses.replace(
            narrowed,
            dtypes=tuple(dtype for dtype in declared.dtypes if any(dtype == d for d, _ in taken)),
            head_dims=tuple(dim for dim in declared.head_dims or HEAD_DIMS if any(dim == d for _, d in taken)),
        )

    def prepare(self, case: AttentionCase) -> None:
        """Build or load the modules that `case` needs: where none is prebuilt, the first use compiles for
        minutes, and a case's own time limit should not pay for it."""
        small = AttentionCase(
            requests=(Request(4, 3),),  # the window of 2 restricts both legs, so the mask packer is built too
            num_qo_heads=case.num_kv_heads,
            num_kv_heads=case.num_kv_heads,
            head_dim_qk=case.head_dim_qk,
            head_dim_vo=case.head_dim_vo,
            dtype=case.dtype,
            kv_dtype=case.kv_dtype,
            window_left=None if case.window_left is None else 2,
            logits_soft_cap=case.logits_soft_cap,
            kv_layout=case.kv_layout,
        )
        if self.library.is_emulated or small in self._prepared or self.capabilities.unsupported(case) is not None:
            return
        batch = build_batch(small, self.devices[0])
        self.run(self.plan(batch), batch)
        self._prepared.add(small)

    @abstractmethod
    def plan(self, batch: AttentionBatch) -> Any:
        """See Adapter."""

    @abstractmethod
    def run(self, plan: Any, batch: AttentionBatch) -> AttentionOutput:
        """See Adapter."""

    def _paged(self, leg: PagedPass, batch: AttentionBatch, dirty: bool) -> tuple[Tensor, Tensor]:
        """out [rows, Hq, D] and log2 lse [rows, Hq] of one paged call."""
        case = batch.case
        wrapper = self._wrappers.get("paged", case.kv_layout, self.backend, batch.device, dirty)
        wrapper.plan(
            leg.qo_indptr,
            leg.kv_indptr,
            leg.kv_indices,
            leg.kv_last_page_len,
            case.num_qo_heads,
            case.num_kv_heads,
            case.head_dim_qk,
            leg.page_size,
            head_dim_vo=case.head_dim_vo,
            custom_mask=leg.custom_mask,
            causal=leg.causal,
            window_left=leg.window_left,
            logits_soft_cap=leg.logits_soft_cap,
            sm_scale=leg.sm_scale,
            q_data_type=torch_dtype(case.dtype),
            kv_data_type=torch_dtype(case.kv_dtype),
            disable_split_kv=leg.disable_split_kv,
        )
        q = batch.q if leg.rows is None else batch.q[leg.rows]
        out = q.new_full((q.shape[0], case.num_qo_heads, case.head_dim_vo), torch.nan)
        lse = torch.full(out.shape[:2], torch.nan, dtype=torch.float32, device=q.device)
        pools = (_by_page_size(batch.k_pool, leg, case), _by_page_size(batch.v_pool, leg, case))
        wrapper.run(q, pools, out=out, lse=lse, return_lse=True)
        return out, lse


class FlashInferSwaMerge(_FlashInferAdapter):
    """Ragged pass over the new rows, paged pass over the reachable prefix, merge_state; fa2."""

    name = "flashinfer-swa-merge"
    merge_legs = 2
    capabilities = Capabilities(
        bidirectional=True, num_splits=True, head_dims=HEAD_DIMS, kv_layouts=(KvLayout.NHD,), rules=(_only_one_split,)
    )

    def plan(self, batch: AttentionBatch) -> SwaMergePlan:
        return plan_swa_merge(batch)

    def run(self, plan: SwaMergePlan, batch: AttentionBatch) -> AttentionOutput:
        out, lse = self._ragged(plan.ragged, batch, plan.dirty_workspace)
        if plan.paged is not None:
            prefix_out, prefix_lse = self._paged(plan.paged, batch, plan.dirty_workspace)
            rows = plan.paged.rows
            if rows is None:
                out, lse = self.library.merge_state(out, lse, prefix_out, prefix_lse)
            else:
                out[rows], lse[rows] = self.library.merge_state(out[rows], lse[rows], prefix_out, prefix_lse)
        batch.write_new_rows()
        return AttentionOutput(out, lse)

    def _ragged(self, leg: RaggedPass, batch: AttentionBatch, dirty: bool) -> tuple[Tensor, Tensor]:
        case = batch.case
        wrapper = self._wrappers.get("ragged", KvLayout.NHD, self.backend, batch.device, dirty)
        wrapper.plan(
            leg.qo_indptr,
            leg.kv_indptr,
            case.num_qo_heads,
            case.num_kv_heads,
            case.head_dim_qk,
            head_dim_vo=case.head_dim_vo,
            causal=leg.causal,
            window_left=leg.window_left,
            logits_soft_cap=leg.logits_soft_cap,
            sm_scale=leg.sm_scale,
            q_data_type=torch_dtype(case.dtype),
            kv_data_type=torch_dtype(case.kv_dtype),
            disable_split_kv=leg.disable_split_kv,
        )
        if leg.run_window_left is not None:
            out, lse = wrapper.forward_return_lse(
                batch.q,
                batch.k_new,
                batch.v_new,
                causal=leg.causal,
                window_left=leg.run_window_left,
                logits_soft_cap=leg.logits_soft_cap,
                sm_scale=leg.sm_scale,
            )
            return out, lse
        out = batch.empty_output()
        lse = torch.full(out.shape[:2], torch.nan, dtype=torch.float32, device=out.device)
        wrapper.run(batch.q, batch.k_new, batch.v_new, out=out, lse=lse, return_lse=True)
        return out, lse


class FlashInferPagedFa2(_FlashInferAdapter):
    """Append the new rows, then one causal, windowed paged pass over [0, S); fa2."""

    name = "flashinfer-paged-fa2"
    capabilities = Capabilities(
        bidirectional=True,
        num_splits=True,
        head_dims=HEAD_DIMS,
        kv_layouts=(KvLayout.NHD, KvLayout.HND),
        rules=(_only_one_split,),
    )

    def plan(self, batch: AttentionBatch) -> SinglePagedPlan:
        return plan_single_paged(batch)

    def run(self, plan: SinglePagedPlan, batch: AttentionBatch) -> AttentionOutput:
        append = plan.append
        self.library.append_paged_kv_cache(
            batch.k_new,
            batch.v_new,
            append.batch_indices,
            append.positions,
            (batch.k_pool, batch.v_pool),
            append.kv_indices,
            append.kv_indptr,
            append.kv_last_page_len,
            str(batch.case.kv_layout),
        )
        return AttentionOutput(*self._paged(plan.paged, batch, plan.dirty_workspace))


class FlashInferPagedFa3(FlashInferPagedFa2):
    """The same on the Hopper kernels."""

    name = "flashinfer-paged-fa3"
    backend = "fa3"
    row_sum_dtype = "float32"
    rounded_splits = False
    poison = Poison.FINITE  # whole tiles are loaded
    capabilities = Capabilities(
        num_splits=True,
        head_dims=HEAD_DIMS,
        kv_layouts=(KvLayout.NHD, KvLayout.HND),
        rules=(_no_split_switch, _no_empty_kv),
    )


def _by_page_size(pool: Tensor, leg: PagedPass, case: AttentionCase) -> Tensor:
    """The pool as the call sees it: itself, or [slots, 1, heads, dim] for a call by token slot."""
    if leg.page_size == case.page_size:
        return pool
    return pool.view(-1, 1, *pool.shape[2:])
