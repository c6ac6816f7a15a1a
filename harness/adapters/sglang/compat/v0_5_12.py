"""SGLang 0.5.12: pools and backend hang on the ForwardBatch; graph metadata by two separate calls."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any

from harness.adapters.sglang.forward import Lengths
from harness.adapters.sglang.setup import Setup, blank_server_args, make_runner, server_arguments


class Release:
    """See compat/base.py."""

    def start(self) -> None:
        """One rank, without torch.distributed: backends call the module's `get_attention_tp_size` by name."""
        from sglang.srt.layers import dp_attention

        dp_attention.get_attention_tp_size = lambda: 1

    def make_runner(self, setup: Setup) -> Any:
        from sglang.srt.server_args import set_global_server_args_for_scheduler

        arguments = blank_server_args(
            {
                **server_arguments(setup),
                "disable_cuda_graph": not setup.graph,
                "disable_piecewise_cuda_graph": True,
                "enable_dp_attention": False,
                "model_path": None,
            }
        )
        set_global_server_args_for_scheduler(arguments)
        return make_runner(setup, arguments)

    def bind(self, batch: Any, runner: Any, backend: Any) -> None:
        batch.req_to_token_pool = runner.req_to_token_pool
        batch.token_to_kv_pool = runner.token_to_kv_pool
        batch.attn_backend = backend

    def at_work(self, backend: Any) -> AbstractContextManager[Any]:
        del backend
        return nullcontext()

    def plan_graph(self, backend: Any, batch: Any, num_tokens: int, *, capture: bool) -> None:
        """As model_executor/cuda_graph_runner.py and eagle_draft_extend_cuda_graph_runner.py call it."""
        if capture:
            backend.init_forward_metadata_capture_cuda_graph(
                batch.batch_size,
                num_tokens,
                batch.req_pool_indices,
                batch.seq_lens,
                None,
                batch.forward_mode,
                batch.spec_info,
            )
        else:
            backend.init_forward_metadata_replay_cuda_graph(
                batch.batch_size,
                batch.req_pool_indices,
                batch.seq_lens,
                batch.seq_lens_sum,
                None,
                batch.forward_mode,
                batch.spec_info,
                batch.seq_lens_cpu,
            )

    def verify_input(self, setup: Setup, sizes: Lengths, mask: Any) -> Any:
        from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode
        from sglang.srt.speculative.eagle_info import EagleVerifyInput

        return EagleVerifyInput(
            draft_token=None,
            custom_mask=mask,
            positions=None,
            retrieve_index=None,
            retrieve_next_token=None,
            retrieve_next_sibling=None,
            retrieve_cum_len=None,
            spec_steps=setup.draft_tokens - 1,
            topk=1,
            draft_token_num=setup.draft_tokens,
            capture_hidden_mode=CaptureHiddenMode.FULL,
            seq_lens_sum=sum(sizes.seq_lens),
            seq_lens_cpu=None,
        )

    def draft_input(self, setup: Setup, sizes: Lengths) -> Any:
        """The fields of EagleDraftInput (0.5.13 and later: EagleDraftExtendInput) that backends read."""
        del sizes
        return SimpleNamespace(
            num_tokens_per_req=setup.draft_tokens, num_accept_tokens=None, num_accept_tokens_cpu=None
        )
