"""What a path supports, declared before any kernel runs.

A capability answers a case with SUPPORTED or UNSUPPORTED and a reason; an exception text never
does. The same value narrows what a fuzzing session draws.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from cases.schema import AttentionCase, KvLayout, Mode

Rule = Callable[[AttentionCase], str | None]


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Declared limits. `rules` are for what no field says: each gives a reason or None."""

    modes: tuple[Mode, ...] = tuple(Mode)
    dtypes: tuple[str, ...] = ("bfloat16", "float16")
    kv_dtypes: tuple[str, ...] | None = None  # None: only the case's own dtype
    window: bool = True
    softcap: bool = True
    sinks: bool = False
    bidirectional: bool = False
    graph: bool = False
    num_splits: bool = False
    head_dims: tuple[int, ...] | None = None  # None: any
    max_head_dim: int = 256
    head_dim_multiple: int = 8
    head_dim_vo_differs: bool = False
    page_size_multiple: int = 1
    kv_layouts: tuple[KvLayout, ...] = (KvLayout.NHD,)
    empty_extends: bool = True  # requests with no new row in a mixed batch
    rules: tuple[Rule, ...] = ()

    def unsupported(self, case: AttentionCase) -> str | None:
        """Why `case` is outside what this path does, or None if it is inside.

        Raises TypeError for a rule that answers with anything but None and a text that says something: a case that is
        not run for no reason would be a hole that nobody sees.
        """
        return next(self._reasons(case), None)

    def _reasons(self, case: AttentionCase) -> Iterator[str]:
        if case.mode not in self.modes:
            yield f"mode {case.mode} is not driven"
        if case.dtype not in self.dtypes:
            yield f"no {case.dtype}"
        if case.kv_dtype != case.dtype and case.kv_dtype not in (self.kv_dtypes or ()):
            yield f"no {case.kv_dtype} kv cache"
        if case.window_left is not None and not self.window:
            yield "no sliding window"
        if case.logits_soft_cap is not None and not self.softcap:
            yield "no logits soft cap"
        if case.sinks and not self.sinks:
            yield "no attention sinks"
        if not case.causal and not self.bidirectional:
            yield "causal only"
        if case.execution.uses_graph and not self.graph:
            yield "no CUDA graph replay"
        if case.execution.num_splits is not None and not self.num_splits:
            yield "the split-kv count cannot be set"
        if case.head_dim_qk != case.head_dim_vo and not self.head_dim_vo_differs:
            yield "head_dim_qk and head_dim_vo must be equal"
        for dim in {case.head_dim_qk, case.head_dim_vo}:
            if self.head_dims is not None and dim not in self.head_dims:
                yield f"no head_dim {dim} (only {', '.join(map(str, self.head_dims))})"
            elif dim > self.max_head_dim or dim % self.head_dim_multiple:
                yield f"no head_dim {dim} (multiples of {self.head_dim_multiple} up to {self.max_head_dim})"
        if case.page_size % self.page_size_multiple:
            yield f"page size {case.page_size} is no multiple of {self.page_size_multiple}"
        if case.kv_layout not in self.kv_layouts:
            yield f"no {case.kv_layout} cache layout"
        if not self.empty_extends and any(r.extend_len == 0 for r in case.requests):
            yield "a request without new rows is not taken"
        for rule in self.rules:
            reason = rule(case)
            if reason is None:
                continue
            if not isinstance(reason, str) or not reason.strip():
                raise TypeError(f"a rule of the capabilities returned {reason!r:.80}; return a reason (text) or None")
            yield reason
