"""Compiling before a run what its cases need (docs/prebuild.md): FlashInfer's modules, FlashAttention 4's kernels."""
