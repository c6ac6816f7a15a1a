"""What the adapters ask of a library, noted instead of done.

The adapters themselves are run, on a library that computes nothing: so what they need is what they ask
for, and no second copy of their planning can go out of step. Their own `prepare` chooses the small batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cases.schema import AttentionCase
from harness.adapters.flash_attention import FlashAttention4, Graph, VarlenCall
from harness.adapters.flash_attention_library import FlashAttention4 as FlashAttention4Library
from harness.adapters.flashinfer import FlashInferPagedFa2, FlashInferPagedFa3, FlashInferSwaMerge

FLASHINFER = {kind.name: kind for kind in (FlashInferSwaMerge, FlashInferPagedFa2, FlashInferPagedFa3)}
FLASH_ATTENTION_4 = FlashAttention4.name
ADAPTERS = (*FLASHINFER, FLASH_ATTENTION_4)

SHORT_DTYPES = {
    torch.bfloat16: "bf16",
    torch.float16: "f16",
    torch.float8_e4m3fn: "e4m3",
    torch.float8_e5m2: "e5m2",
    torch.int32: "i32",
}


# -- FlashInfer ----------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class PrefillModule:
    """What FlashInfer compiles a batch-prefill module for: the arguments of `gen_batch_prefill_module`
    (0.6.18, jit/attention/modules.py), less those that no adapter sets."""

    backend: str
    dtype_q: torch.dtype
    dtype_kv: torch.dtype
    dtype_o: torch.dtype
    dtype_idx: torch.dtype
    head_dim_qk: int
    head_dim_vo: int
    use_sliding_window: bool
    use_logits_soft_cap: bool

    @property
    def name(self) -> str:
        """As `get_batch_prefill_uri` makes it."""
        q, kv, o, idx = (SHORT_DTYPES[d] for d in (self.dtype_q, self.dtype_kv, self.dtype_o, self.dtype_idx))
        return (
            f"batch_prefill_with_kv_cache_dtype_q_{q}_dtype_kv_{kv}_dtype_o_{o}_dtype_idx_{idx}_"
            f"head_dim_qk_{self.head_dim_qk}_head_dim_vo_{self.head_dim_vo}_posenc_0_"
            f"use_swa_{self.use_sliding_window}_use_logits_cap_{self.use_logits_soft_cap}_"
            f"f16qk_False{'_sm90' if self.backend == 'fa3' else ''}"
        )


@dataclass(frozen=True, slots=True)
class HelperModule:
    """A module without parameters: "cascade" (merge_state), "page" (append), "quantization" (custom masks)."""

    name: str


Module = PrefillModule | HelperModule


class _Wrapper:
    """A BatchPrefillWith{Ragged,Paged}KVCacheWrapper that notes what its plan would load."""

    def __init__(self, note: Callable[[Module], None], backend: str, dims_at: int) -> None:
        self._note, self._backend, self._dims_at = note, backend, dims_at

    def reset_workspace_buffer(self, *_buffers: Tensor) -> None:
        """Takes no memory: nothing is computed."""

    def plan(
        self,
        _qo_indptr: Tensor,
        kv_indptr: Tensor,
        *arguments: Any,
        head_dim_vo: int,
        q_data_type: torch.dtype,
        kv_data_type: torch.dtype,
        window_left: int,
        logits_soft_cap: float,
        custom_mask: Tensor | None = None,
        **_others: Any,  # causal, sm_scale, disable_split_kv: no part of the key
    ) -> None:
        if custom_mask is not None:
            self._note(HelperModule("quantization"))
        module = PrefillModule(
            backend=self._backend,
            dtype_q=q_data_type,
            dtype_kv=kv_data_type,
            dtype_o=q_data_type,
            dtype_idx=kv_indptr.dtype,
            head_dim_qk=arguments[self._dims_at],
            head_dim_vo=head_dim_vo,
            use_sliding_window=window_left >= 0,
            use_logits_soft_cap=logits_soft_cap > 0,
        )
        self._note(module)

    def run(self, *_arguments: Any, **_named: Any) -> None:
        """Leaves the output as it is."""


class RecordingFlashInfer:
    """harness.adapters.flashinfer.FlashInferLibrary that notes the modules it is asked for."""

    version = "recording"
    is_emulated = False
    workspace_bytes = 64
    prebuilt: frozenset[str] | None = None

    def __init__(self) -> None:
        self.asked: dict[Module, None] = {}  # a set that keeps its order

    def _note(self, module: Module) -> None:
        self.asked[module] = None

    def ragged_wrapper(self, _workspace: Tensor, _kv_layout: str, backend: str) -> Any:
        return _Wrapper(self._note, backend, dims_at=2)

    def paged_wrapper(self, _workspace: Tensor, _kv_layout: str, backend: str) -> Any:
        return _Wrapper(self._note, backend, dims_at=4)

    def merge_state(self, v_a: Tensor, s_a: Tensor, *_prefix: Tensor) -> tuple[Tensor, Tensor]:
        self._note(HelperModule("cascade"))
        return v_a, s_a

    def append_paged_kv_cache(self, *_arguments: Any, **_named: Any) -> None:
        self._note(HelperModule("page"))


def flashinfer_modules(cases: Iterable[AttentionCase], adapter: str) -> list[Module]:
    """The modules that `adapter` (a name of FLASHINFER) loads for `cases`, in the order of first use."""
    library = RecordingFlashInfer()
    made = FLASHINFER[adapter](library)
    made.devices = ("cpu",)
    for case in cases:
        made.prepare(case)
    return list(library.asked)


# -- FlashAttention 4 ----------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class TensorLike:
    """A tensor without its data."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    @staticmethod
    def of(tensor: Tensor | None) -> TensorLike | None:
        return None if tensor is None else TensorLike(tuple(tensor.shape), tensor.stride(), tensor.dtype)


@dataclass(frozen=True, slots=True)
class CallLike:
    """A VarlenCall without data: all that FlashAttention 4's choice of kernel can depend on.

    tensors: by the names of VarlenCall; numbers: its other fields
    """

    tensors: tuple[tuple[str, TensorLike | None], ...]
    numbers: tuple[tuple[str, Any], ...]

    @staticmethod
    def of(call: VarlenCall) -> CallLike:
        fields = {name: getattr(call, name) for name in VarlenCall.__dataclass_fields__}
        tensors = {name for name, value in fields.items() if isinstance(value, Tensor)} | {"sinks", "out"}
        return CallLike(
            tuple((name, TensorLike.of(fields[name])) for name in sorted(tensors)),
            tuple((name, value) for name, value in fields.items() if name not in tensors),
        )

    def made(self, make: Callable[[TensorLike], Tensor]) -> VarlenCall:
        """The call with tensors from `make`."""
        tensors = {name: None if like is None else make(like) for name, like in self.tensors}
        return VarlenCall(**tensors, **dict(self.numbers))  # type: ignore[arg-type]


class RecordingFlashAttention4:
    """harness.adapters.flash_attention.FlashAttentionLibrary that notes its calls."""

    version = "recording"
    is_emulated = False
    traits = FlashAttention4Library.traits

    def __init__(self) -> None:
        self.asked: dict[CallLike, None] = {}

    def varlen(self, call: VarlenCall) -> tuple[Tensor, Tensor]:
        self.asked[CallLike.of(call)] = None
        assert call.out is not None
        return call.out, call.q.new_zeros(call.q.shape[1::-1], dtype=torch.float32)

    def graph(self, _function: Callable[[], tuple[Tensor, Tensor]]) -> Graph:
        raise AssertionError("prepare runs eagerly")

    def copy_metadata(self, *_arguments: object) -> None:
        raise AssertionError("prepare runs eagerly")


def flash_attention_4_calls(cases: Iterable[AttentionCase]) -> list[CallLike]:
    """The distinct calls that `flash-attn-4` makes to compile what `cases` need."""
    library = RecordingFlashAttention4()
    adapter = FlashAttention4(library)
    adapter.devices = ("cpu",)
    for case in cases:
        adapter.prepare(case)
    return list(library.asked)
