"""Which vLLM this process uses: where its Python tree is, and its version.

Only the wheel's tree is needed, no installation: `ATTN_HARNESS_VLLM` names a folder that holds `vllm/`.
Without it an installed package is used. A folder that holds only vLLM's FlashAttention build, without the
backends, is none.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

VARIABLE = "ATTN_HARNESS_VLLM"
BACKENDS = Path("vllm") / "v1" / "attention" / "backends"
# Releases whose builder and backend were run here; the metadata classes change often.
KNOWN = ((0, 22),)


class VllmUnavailable(Exception):
    """No vLLM, or one that is not known here; the message is one sentence."""


@dataclass(frozen=True, slots=True)
class Tree:
    """root: the folder that holds `vllm/`; the version as text."""

    root: Path
    version: str


def find_tree() -> Tree:
    """The tree of this process, its root put first on sys.path. Raises VllmUnavailable."""
    asked = os.environ.get(VARIABLE)
    root = Path(asked).expanduser().resolve() if asked else _installed_root()
    if not (root / BACKENDS).is_dir():
        raise VllmUnavailable(f"{VARIABLE} is {asked}, which holds no {BACKENDS}; give the folder that does.")
    if asked and sys.path[0] != str(root):
        sys.path.insert(0, str(root))
    version = _version(root)
    if not any(version.split(".")[:2] == [str(part) for part in known] for known in KNOWN):
        known_here = ", ".join(".".join(map(str, known)) for known in KNOWN)
        raise VllmUnavailable(f"vLLM {version} is not known here (known: {known_here}); see harness/adapters/vllm/.")
    return Tree(root, version)


def _installed_root() -> Path:
    try:
        spec = importlib.util.find_spec("vllm")
    except (ImportError, ValueError):
        spec = None
    for place in (spec and spec.submodule_search_locations) or ():
        if (Path(place).parent / BACKENDS).is_dir():
            return Path(place).parent
    raise VllmUnavailable(
        f"vLLM with its backends is not installed; set {VARIABLE} to a folder that holds vllm/ (`make vllm` makes one)."
    )


def _version(root: Path) -> str:
    for info in sorted(root.glob("vllm-*.dist-info")):
        return info.name.removeprefix("vllm-").removesuffix(".dist-info").partition("+")[0]
    try:
        return metadata.version("vllm")
    except metadata.PackageNotFoundError:
        raise VllmUnavailable(f"the vLLM tree in {root} says no version; use one that a wheel holds.") from None
