"""SGLang 0.5.23: a runtime context holds arguments and parallel sizes, a translator maps kv indices."""

from __future__ import annotations

from typing import Any

from harness.adapters.sglang.compat import v0_5_13
from harness.adapters.sglang.setup import Setup, make_runner, server_arguments


class Release(v0_5_13.Release):
    """See compat/base.py."""

    def __init__(self) -> None:
        self._parallel: Any = None
        self._arguments: Any = None

    def start(self) -> None:
        from sglang.srt.runtime_context import get_parallel

        self._parallel = get_parallel().override(attn_tp_size=1, attn_dcp_rank=0)
        self._parallel.__enter__()

    def make_runner(self, setup: Setup) -> Any:
        from sglang.srt.mem_cache.kv_index_translator import KVIndexTranslator
        from sglang.srt.model_executor.cuda_graph_config import Backend, CudaGraphConfig, PhaseConfig
        from sglang.srt.runtime_context import get_context

        graphs = CudaGraphConfig(
            decode=PhaseConfig(backend=Backend.FULL if setup.graph else Backend.DISABLED),
            prefill=PhaseConfig(backend=Backend.DISABLED),
        )
        override = get_context().override_server_args(cuda_graph_config=graphs, **server_arguments(setup))
        runner = make_runner(setup, override.install())
        self._arguments = override  # keeps the arguments installed
        runner.kv_index_translator = KVIndexTranslator(
            req_to_token=runner.req_to_token_pool.req_to_token,
            token_to_kv_pool_allocator=runner.token_to_kv_pool_allocator,
            token_to_kv_pool=runner.token_to_kv_pool,
            page_size=setup.page_size,
            device=setup.device,
            is_draft_worker=False,
        )
        return runner

    def bind(self, batch: Any, runner: Any, backend: Any) -> None:
        del backend
        runner.kv_index_translator.bind_own_plan(batch)
