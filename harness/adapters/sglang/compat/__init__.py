"""The compatibility module of a release. Ranges are those that were run; see docs/sglang.md."""

from __future__ import annotations

from typing import cast

from harness.adapters.sglang import tree
from harness.adapters.sglang.compat.base import Compat


def _v0_5_12() -> object:
    from harness.adapters.sglang.compat.v0_5_12 import Release

    return Release()


def _v0_5_13() -> object:
    from harness.adapters.sglang.compat.v0_5_13 import Release

    return Release()


def _v0_5_23() -> object:
    from harness.adapters.sglang.compat.v0_5_23 import Release

    return Release()


RANGES = (
    ((0, 5, 12), (0, 5, 12), _v0_5_12),
    ((0, 5, 13), (0, 5, 13), _v0_5_13),
    ((0, 5, 23), (0, 5, 23), _v0_5_23),
)


def compat_for(found: tree.Tree) -> Compat:
    """Raises SglangUnavailable with one sentence for a release that no range holds."""
    return cast(Compat, tree.choose(found, RANGES))
