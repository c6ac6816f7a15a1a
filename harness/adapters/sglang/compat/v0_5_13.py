"""SGLang 0.5.13: pools are read from the runner, the backend from a context, graph metadata by one call."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from harness.adapters.sglang.compat import v0_5_12


class Release(v0_5_12.Release):
    """See compat/base.py."""

    def bind(self, batch: Any, runner: Any, backend: Any) -> None:
        del batch, runner, backend

    def at_work(self, backend: Any) -> AbstractContextManager[Any]:
        from sglang.srt.model_executor.forward_context import ForwardContext, forward_context

        context: AbstractContextManager[Any] = forward_context(ForwardContext(attn_backend=backend))
        return context

    def plan_graph(self, backend: Any, batch: Any, num_tokens: int, *, capture: bool) -> None:
        del num_tokens
        backend.init_forward_metadata_out_graph(batch, in_capture=capture)
