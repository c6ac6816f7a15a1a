"""What differs between SGLang releases, as one protocol; a module of this folder answers it for a range."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol

from harness.adapters.sglang.forward import Lengths
from harness.adapters.sglang.setup import Setup


class Compat(Protocol):
    """One range of releases.

    start:           once per process: one rank, no torch.distributed
    make_runner:     the mock runner of a Setup, global server arguments installed
    bind:            ties a ForwardBatch to a runner and backend where this range wants that
    at_work:         the context that a forward pass needs
    plan_graph:      metadata for CUDA graph capture (capture=True) and before a replay
    verify_input:    the speculative input of TARGET_VERIFY for a chain of draft tokens
    draft_input:     that of DRAFT_EXTEND_V2
    """

    def start(self) -> None: ...

    def make_runner(self, setup: Setup) -> Any: ...

    def bind(self, batch: Any, runner: Any, backend: Any) -> None: ...

    def at_work(self, backend: Any) -> AbstractContextManager[Any]: ...

    def plan_graph(self, backend: Any, batch: Any, num_tokens: int, *, capture: bool) -> None: ...

    def verify_input(self, setup: Setup, sizes: Lengths, mask: Any) -> Any: ...

    def draft_input(self, setup: Setup, sizes: Lengths) -> Any: ...
