"""SGLang 0.5.14 and 0.5.15: parallel sizes come from a runtime context, graphs are configured per phase."""

from __future__ import annotations

from typing import Any

from harness.adapters.sglang.compat import v0_5_13
from harness.adapters.sglang.setup import Setup, blank_server_args, make_runner, server_arguments


def graph_config(setup: Setup) -> Any:
    """A CudaGraphConfig: decode (which speculative batches are too) captured or not, prefill never."""
    from sglang.srt.model_executor.cuda_graph_config import Backend, CudaGraphConfig, PhaseConfig

    return CudaGraphConfig(
        decode=PhaseConfig(backend=Backend.FULL if setup.graph else Backend.DISABLED),
        prefill=PhaseConfig(backend=Backend.DISABLED),
    )


class Release(v0_5_13.Release):
    """See compat/base.py."""

    parallel_sizes: tuple[tuple[str, int], ...] = (("attn_tp_size", 1), ("attn_cp_size", 1))

    def __init__(self) -> None:
        self._parallel: Any = None

    def start(self) -> None:
        from sglang.srt.runtime_context import get_parallel

        self._parallel = get_parallel().override(**dict(self.parallel_sizes))
        self._parallel.__enter__()

    def make_runner(self, setup: Setup) -> Any:
        from sglang.srt.server_args import set_global_server_args_for_scheduler

        more = {"cuda_graph_config": graph_config(setup), "enable_dp_attention": False, "model_path": None}
        arguments = blank_server_args({**server_arguments(setup), **more})
        set_global_server_args_for_scheduler(arguments)
        return make_runner(setup, arguments)
