"""SGLang 0.5.22 and 0.5.23: the translator's plan is bound to each ForwardBatch."""

from __future__ import annotations

from typing import Any

from harness.adapters.sglang.compat import v0_5_19


class Release(v0_5_19.Release):
    """See compat/base.py."""

    def bind(self, batch: Any, runner: Any, backend: Any) -> None:
        del backend
        runner.kv_index_translator.bind_own_plan(batch)
