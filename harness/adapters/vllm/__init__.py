"""vLLM's own attention backends as black boxes (see docs/sglang.md, "vLLM")."""

from harness.adapters.vllm.entries import VllmEntry, vllm_entries
from harness.adapters.vllm.runtime import Emulations

__all__ = ["Emulations", "VllmEntry", "vllm_entries"]
