"""What `doctor` says of vLLM: its version, the stand-ins, what is missing. Imports none of it."""

from __future__ import annotations

from harness.adapters.vllm import standins
from harness.adapters.vllm.entries import FLASHINFER_NAME, NAME, found_tree


def vllm_report(*, has_gpu: bool) -> list[str]:
    """Sentences for a backend developer; one that says why not where there is no vLLM."""
    tree, why_not = found_tree()
    if tree is None:
        return [f"{why_not}."]
    said = [
        f"vLLM {tree.version} in {tree.root}; its FlashAttention backend runs as {NAME}, "
        f"its FlashInfer backend as {FLASHINFER_NAME}."
    ]
    missing = standins.missing()
    if missing:
        named = "; ".join(f"{name} ({standins.STAND_INS[name]})" for name in missing)
        said.append(f"Stand-ins, which attention never calls: {named}.")
    if not any((tree.root / "vllm").glob("_C*.so")):
        said.append("vLLM's own kernels are not in the tree: its cache write is a plain indexed store.")
    if not has_gpu:
        said.append(
            "No GPU: CUDA is pretended while vLLM's code runs, FlashAttention 3 and FlashInfer's wrappers are emulated "
            f"({NAME}@emulated, {FLASHINFER_NAME}@emulated)."
        )
    return said
