"""Record the attention batches of a running SGLang: one import, in each of its processes.

    SGLANG_EXTERNAL_MODEL_PACKAGE=harness.recording.sglang python -m sglang.launch_server ...

SGLang imports the package of that name in every process that builds a model (srt/models/registry.py),
before the model is built. In a process of your own: `import sglang, harness.recording.sglang`.

    ATTN_HARNESS_RECORD             folder for the cases (default ./attn-cases)
    ATTN_HARNESS_RECORD_PER_MINUTE  at most so many a minute (6)
    ATTN_HARNESS_RECORD_LIMIT       at most so many in all (500)

What is read: the forward mode, host-side lengths, and the layers' sizes. Device tensors are not touched,
so nothing waits for the GPU. A batch whose lengths are on the device alone is passed over.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cases.schema import AttentionCase, Mode
from harness.recording.recorder import Recorder, requests_of


@dataclass(frozen=True, slots=True)
class Layer:
    """What distinguishes the attention layers of a model (RadixAttention's arguments)."""

    num_qo_heads: int
    num_kv_heads: int
    head_dim_qk: int
    head_dim_vo: int
    window_left: int | None
    logits_soft_cap: float | None
    sm_scale: float


def layer_of(made: Any) -> Layer:
    window, cap = made.sliding_window_size, made.logit_cap
    return Layer(
        num_qo_heads=made.tp_q_head_num,
        num_kv_heads=made.tp_k_head_num,
        head_dim_qk=made.qk_head_dim,
        head_dim_vo=made.v_head_dim,
        window_left=None if window is None or window < 0 else int(window),
        logits_soft_cap=float(cap) if cap and cap > 0 else None,
        sm_scale=float(made.scaling),
    )


def case_of(layer: Layer, batch: Any, page_size: int, dtype: str) -> AttentionCase | None:
    """The case of a ForwardBatch for one layer; None for modes that are not dense attention of one model."""
    mode = getattr(batch.forward_mode, "name", str(batch.forward_mode))
    prefix, extend = _lengths(mode, batch)
    if not prefix or mode not in MODES:
        return None
    return AttentionCase(
        requests=requests_of(prefix, extend),
        mode=MODES[mode],
        num_qo_heads=layer.num_qo_heads,
        num_kv_heads=layer.num_kv_heads,
        head_dim_qk=layer.head_dim_qk,
        head_dim_vo=layer.head_dim_vo,
        dtype=dtype,
        kv_dtype=dtype,
        window_left=layer.window_left,
        logits_soft_cap=layer.logits_soft_cap,
        sm_scale=layer.sm_scale,
        page_size=page_size,
    )


MODES = {
    "EXTEND": Mode.EXTEND,
    "MIXED": Mode.EXTEND,
    "DECODE": Mode.DECODE,
    "DRAFT_EXTEND_V2": Mode.DRAFT_EXTEND_V2,
    "TARGET_VERIFY": Mode.TARGET_VERIFY,
}


def _lengths(mode: str, batch: Any) -> tuple[list[int], list[int]]:
    """prefix and extend lengths on the host, by the conventions in harness/adapters/sglang/forward.py."""
    if mode in ("EXTEND", "MIXED", "DRAFT_EXTEND_V2"):
        prefix = getattr(batch, "extend_prefix_lens_cpu", None)
        extend = getattr(batch, "extend_seq_lens_cpu", None)
        if prefix is None and extend is not None and getattr(batch, "seq_lens_cpu", None) is not None:
            prefix = [s - e for s, e in zip(_host(batch.seq_lens_cpu), extend, strict=False)]
        return (_host(prefix), _host(extend)) if prefix is not None and extend is not None else ([], [])
    if getattr(batch, "seq_lens_cpu", None) is None:
        return [], []
    lengths = _host(batch.seq_lens_cpu)[: batch.batch_size]
    if mode == "TARGET_VERIFY":
        tokens = int(batch.spec_info.draft_token_num)
        return lengths, [tokens] * len(lengths)
    return [max(0, length - 1) for length in lengths], [1] * len(lengths)


def _host(values: Any) -> list[int]:
    """A list, or a tensor that is on the host already."""
    if getattr(values, "is_cuda", False):
        return []
    return [int(v) for v in (values.tolist() if hasattr(values, "tolist") else values)]


def install(recorder: Recorder) -> None:
    """Watch RadixAttention (for the layers' sizes) and every backend's planning (for the batches)."""
    from sglang.srt.layers.attention.base_attn_backend import AttentionBackend
    from sglang.srt.layers.radix_attention import RadixAttention

    layers: set[Layer] = set()
    made_layer = RadixAttention.__init__

    @functools.wraps(made_layer)
    def make_layer(self: Any, *args: Any, **kwargs: Any) -> None:
        made_layer(self, *args, **kwargs)
        layers.add(layer_of(self))

    RadixAttention.__init__ = make_layer

    def watch(backend: Any, batch: Any) -> None:
        recorder.see(lambda: [case_of(layer, batch, *_cache_of(backend)) for layer in tuple(layers)])

    def wrap(kind: type[Any]) -> None:
        for name in PLANNING:
            if name in vars(kind):
                setattr(kind, name, _watched(vars(kind)[name], watch))

    for kind in _all_subclasses(AttentionBackend):
        wrap(kind)
    later = AttentionBackend.__dict__.get("__init_subclass__")

    def on_subclass(kind: type[Any], /, **kwargs: Any) -> None:
        if later is not None:
            later.__func__(kind, **kwargs)
        wrap(kind)

    AttentionBackend.__init_subclass__ = classmethod(on_subclass)


# Eager planning; before a graph replay, from 0.5.13 on; the same in 0.5.12.
PLANNING = (
    "init_forward_metadata",
    "init_forward_metadata_out_graph",
    "init_forward_metadata_replay_cuda_graph",
)


def _watched(plan: Callable[..., Any], watch: Callable[[Any, Any], None]) -> Callable[..., Any]:
    """`plan`, with the batch shown to `watch` first. Capturing a graph is not a batch of production."""
    names = tuple(inspect.signature(plan).parameters)

    @functools.wraps(plan)
    def planning(self: Any, *args: Any, **kwargs: Any) -> Any:
        given = dict(zip(names[1:], args, strict=False)) | kwargs
        if not given.get("in_capture"):
            watch(self, given["forward_batch"] if "forward_batch" in given else _View(given))
        return plan(self, *args, **kwargs)

    return planning


class _View:
    """The arguments of 0.5.12's init_forward_metadata_replay_cuda_graph, as fields of a batch."""

    def __init__(self, given: dict[str, Any]) -> None:
        self.batch_size = given.get("bs")
        self.forward_mode = given.get("forward_mode")
        self.seq_lens_cpu = given.get("seq_lens_cpu")
        self.spec_info = given.get("spec_info")
        self.extend_prefix_lens_cpu = None
        self.extend_seq_lens_cpu = getattr(self.spec_info, "extend_seq_lens_cpu", None)


def _cache_of(backend: Any) -> tuple[int, str]:
    """(page size, dtype of the cache) from the pool that a backend holds; 1 and bfloat16 where it holds none."""
    pool = getattr(backend, "token_to_kv_pool", None)
    dtype = str(getattr(pool, "dtype", "bfloat16")).removeprefix("torch.")
    return int(getattr(pool, "page_size", 1)), dtype if dtype in ("bfloat16", "float16") else "bfloat16"


def _all_subclasses(kind: type[Any]) -> list[type[Any]]:
    return [kind, *(sub for direct in kind.__subclasses__() for sub in _all_subclasses(direct))]


def _recorder_from_environment() -> Recorder:
    def number(name: str, default: int) -> int:
        text = os.environ.get(name, "")
        return int(text) if text.isdigit() else default

    return Recorder(
        Path(os.environ.get("ATTN_HARNESS_RECORD", "attn-cases")),
        per_minute=number("ATTN_HARNESS_RECORD_PER_MINUTE", 6),
        limit=number("ATTN_HARNESS_RECORD_LIMIT", 500),
    )


RECORDER: Recorder | None = None


def start() -> Recorder:
    """Install, once per process."""
    global RECORDER
    if RECORDER is None:
        RECORDER = _recorder_from_environment()
        install(RECORDER)
    return RECORDER


if "sglang" in sys.modules:  # imported by SGLang, or beside it: that is the one import it takes
    start()
