"""SGLang 0.5.19 to 0.5.21: a translator of the runner maps the kv indices that backends gather."""

from __future__ import annotations

from typing import Any

from harness.adapters.sglang.compat import v0_5_16
from harness.adapters.sglang.setup import Setup


class Release(v0_5_16.Release):
    """See compat/base.py."""

    def make_runner(self, setup: Setup) -> Any:
        from sglang.srt.mem_cache.kv_index_translator import KVIndexTranslator

        runner = super().make_runner(setup)
        runner.kv_index_translator = KVIndexTranslator(
            req_to_token=runner.req_to_token_pool.req_to_token,
            token_to_kv_pool_allocator=runner.token_to_kv_pool_allocator,
            token_to_kv_pool=runner.token_to_kv_pool,
            page_size=setup.page_size,
            device=setup.device,
        )
        return runner
