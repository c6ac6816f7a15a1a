"""SGLang's own attention backends as black boxes (see docs/sglang.md)."""

from harness.adapters.sglang.entries import Libraries, SglangEntry, found_tree, sglang_entries

__all__ = ["Libraries", "SglangEntry", "found_tree", "sglang_entries"]
