"""SGLang 0.5.16 to 0.5.18: the runtime context holds the server arguments too."""

from __future__ import annotations

from typing import Any

from harness.adapters.sglang.compat import v0_5_14
from harness.adapters.sglang.setup import Setup, make_runner, server_arguments


class Release(v0_5_14.Release):
    """See compat/base.py."""

    parallel_sizes = (("attn_tp_size", 1), ("attn_cp_size", 1), ("attn_dcp_rank", 0))

    def __init__(self) -> None:
        super().__init__()
        self._arguments: Any = None

    def make_runner(self, setup: Setup) -> Any:
        from sglang.srt.runtime_context import get_context

        override = get_context().override_server_args(
            cuda_graph_config=v0_5_14.graph_config(setup), **server_arguments(setup)
        )
        runner = make_runner(setup, override.install())
        self._arguments = override  # keeps the arguments installed
        return runner
