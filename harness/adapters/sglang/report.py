"""What `doctor` says of SGLang: its version, the stand-ins, what is missing. Imports none of it."""

from __future__ import annotations

from harness.adapters.sglang import standins
from harness.adapters.sglang.entries import found_tree


def sglang_report(*, has_gpu: bool, fa3_missing: str | None) -> list[str]:
    """Sentences for a backend developer; one that says why not where there is no SGLang."""
    tree, why_not = found_tree()
    if tree is None:
        return [f"{why_not}."]
    said = [f"SGLang {tree.text} in {tree.root}; its attention backends run as sglang-*."]
    missing = standins.missing()
    if missing:
        named = "; ".join(f"{name} ({standins.STAND_INS[name]})" for name in missing)
        said.append(f"Stand-ins, which attention never calls: {named}.")
    if not has_gpu:
        said.append(
            "No GPU: CUDA is pretended while SGLang's code runs, FlashInfer and FlashAttention are emulated "
            "(sglang-*@emulated); torch_native and flex are SGLang's and torch's own."
        )
    elif "sgl_kernel" in missing:
        source = f"nothing: {fa3_missing}" if fa3_missing else "the installed FlashAttention 3"
        said.append(f"sgl_kernel.flash_attn is a shim over {source}; SGLang's own build was not found.")
    return said
