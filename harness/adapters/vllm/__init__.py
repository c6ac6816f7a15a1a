"""vLLM's own attention backends as black boxes (see docs/sglang.md, "vLLM")."""

from harness.adapters.vllm.entries import VllmEntry, vllm_entries

__all__ = ["VllmEntry", "vllm_entries"]
