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


def _v0_5_14() -> object:
    from harness.adapters.sglang.compat.v0_5_14 import Release

    return Release()


def _v0_5_16() -> object:
    from harness.adapters.sglang.compat.v0_5_16 import Release

    return Release()


def _v0_5_19() -> object:
    from harness.adapters.sglang.compat.v0_5_19 import Release

    return Release()


def _v0_5_22() -> object:
    from harness.adapters.sglang.compat.v0_5_22 import Release

    return Release()


RANGES = (
    ((0, 5, 12), (0, 5, 12), _v0_5_12),
    ((0, 5, 13), (0, 5, 13), _v0_5_13),
    ((0, 5, 14), (0, 5, 15), _v0_5_14),
    ((0, 5, 16), (0, 5, 18), _v0_5_16),
    ((0, 5, 19), (0, 5, 21), _v0_5_19),
    ((0, 5, 22), (0, 5, 23), _v0_5_22),
)


def compat_for(found: tree.Tree) -> Compat:
    """Raises SglangUnavailable with one sentence for a release that no range holds."""
    return cast(Compat, tree.choose(found, RANGES))
