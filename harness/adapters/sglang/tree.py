"""Which SGLang this process uses: where its Python tree is, and its version.

Only a Python tree is needed, no installation: `ATTN_HARNESS_SGLANG` names a folder that holds `sglang/`
(`make sglang` unpacks one). Without it an installed package is used. A process uses one tree.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

VARIABLE = "ATTN_HARNESS_SGLANG"


class SglangUnavailable(Exception):
    """No SGLang, or one that is not known here; the message is one sentence."""


@dataclass(frozen=True, slots=True)
class Tree:
    """root: the folder that holds `sglang/`; version as a tuple of numbers and as text."""

    root: Path
    version: tuple[int, ...]
    text: str


def find_tree() -> Tree:
    """The tree of this process, its root put first on sys.path. Raises SglangUnavailable."""
    asked = os.environ.get(VARIABLE)
    root = Path(asked).expanduser().resolve() if asked else _installed_root()
    if not (root / "sglang" / "srt").is_dir():
        raise SglangUnavailable(f"{VARIABLE} is {asked}, which holds no sglang/srt; give the folder that does.")
    if asked and sys.path[0] != str(root):
        sys.path.insert(0, str(root))
    text = _version(root)
    return Tree(root, _numbers(text), text)


def _installed_root() -> Path:
    spec = importlib.util.find_spec("sglang")
    for place in (spec and spec.submodule_search_locations) or ():
        if (Path(place) / "srt").is_dir():  # a folder that is only called so is a namespace package too
            return Path(place).parent
    raise SglangUnavailable(
        f"SGLang is not installed; set {VARIABLE} to a folder that holds sglang/ (`make sglang` makes one)."
    )


def _version(root: Path) -> str:
    """From the tree's own _version.py or its dist-info: asking sglang itself would import it."""
    for info in sorted(root.glob("sglang-*.dist-info")):
        return info.name.removeprefix("sglang-").removesuffix(".dist-info")
    written = root / "sglang" / "_version.py"
    if written.is_file():
        match = re.search(r"""^__version__.*= ['"]([^'"]+)['"]""", written.read_text(encoding="utf-8"), re.MULTILINE)
        if match:
            return match[1]
    try:
        return metadata.version("sglang")
    except metadata.PackageNotFoundError:
        raise SglangUnavailable(f"the SGLang tree in {root} says no version; use one that a wheel holds.") from None


def _numbers(text: str) -> tuple[int, ...]:
    match = re.match(r"\d+(?:\.\d+)*", text)
    if match is None:
        raise SglangUnavailable(f"SGLang calls its version {text!r}, which has no number.")
    return tuple(int(part) for part in match[0].split("."))


def choose(tree: Tree, ranges: tuple[tuple[tuple[int, ...], tuple[int, ...], Callable[[], object]], ...]) -> object:
    """The compatibility module of the tree's version; `ranges` are (first, last, loader), both inclusive."""
    for first, last, load in ranges:
        if first <= tree.version[:3] <= last:
            return load()
    known = ", ".join(".".join(map(str, a)) + " to " + ".".join(map(str, b)) for a, b, _ in ranges)
    raise SglangUnavailable(
        f"SGLang {tree.text} is not known here (known: {known}); add a file to harness/adapters/sglang/compat/."
    )
