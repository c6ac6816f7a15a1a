"""Which edges of the case space a session reached, and which it could not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from cases.coverage import ALL_EDGES, LONG, edges
from cases.draw_limits import DrawLimits, Profile
from cases.schema import AttentionCase, KvLayout, Mode, PageOrder, Poison


@dataclass(slots=True)
class EdgeCount:
    """Cases by edge and by pair of edges (in alphabetical order); `beyond` are edges that limits exclude."""

    beyond: frozenset[str] = frozenset()
    cases: int = 0
    single: Counter[str] = field(default_factory=Counter)
    pairs: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, case: AttentionCase) -> None:
        here = sorted(edges(case))
        self.cases += 1
        self.single.update(here)
        self.pairs.update((a, b) for at, a in enumerate(here) for b in here[at + 1 :])

    def merge(self, other: EdgeCount) -> None:
        """Add what another engine of the same adapter reached."""
        self.cases += other.cases
        self.single.update(other.single)
        self.pairs.update(other.pairs)
        self.beyond &= other.beyond

    @property
    def within(self) -> list[str]:
        """Edges that could be reached, in the order of ALL_EDGES."""
        return [edge for edge in ALL_EDGES if edge not in self.beyond]

    @property
    def missed(self) -> list[str]:
        return [edge for edge in self.within if edge not in self.single]

    @property
    def reached(self) -> int:
        return sum(edge in self.single for edge in self.within)

    def to_json(self) -> dict[str, Any]:
        return {
            "cases": self.cases,
            "edges": {edge: self.single[edge] for edge in ALL_EDGES if edge in self.single},
            "missed": self.missed,
            "beyond": sorted(self.beyond),
            "pairs_reached": len(self.pairs),
            "pairs": {f"{a} & {b}": count for (a, b), count in sorted(self.pairs.items())},
        }


def beyond(limits: DrawLimits, profile: Profile) -> frozenset[str]:
    """Edges that no case inside `limits` and `profile` stands on."""
    return frozenset((*_fields_beyond(limits), *_sizes_beyond(limits, profile)))


def _fields_beyond(limits: DrawLimits) -> Iterable[str]:
    allowed = {
        "no window": limits.full,
        "softcap": limits.softcap,
        "sinks": limits.sinks,
        "not causal": limits.bidirectional,
        "fp16": "float16" in limits.dtypes,
        "fp8 kv": bool(limits.kv_dtypes),
        "head_dim_vo differs": limits.head_dim_vo_differs,
        "HND": KvLayout.HND in limits.kv_layouts,
        "spiky": "spiky" in limits.recipes,
        "kv splits": limits.num_splits,
        "extend=0": limits.empty_extends,
        "kv=0": limits.empty_extends,
        "graph captured shorter": bool(limits.graph_modes),
        "graph captured longer": bool(limits.graph_modes),
        **{f"mode {mode}": mode in limits.modes for mode in Mode},
        **{f"poison {level}": level in limits.poisons for level in Poison},
        **{f"pages {order}": True for order in PageOrder},
    }
    if not limits.window:
        allowed |= {edge: False for edge in ALL_EDGES if "window" in edge and edge != "no window"}
    for name, values in (
        ("page size", limits.page_sizes),
        ("group", limits.group_sizes),
        ("head_dim", limits.head_dims),
    ):
        for edge in ALL_EDGES:
            number = edge.removeprefix(f"{name} ")
            if number != edge and number.isdigit():
                allowed[edge] = int(number) in values
    if max(limits.page_sizes) <= 2:
        allowed |= {edge: False for edge in ALL_EDGES if "=page" in edge}
    return [edge for edge, possible in allowed.items() if not possible]


def _sizes_beyond(limits: DrawLimits, profile: Profile) -> Iterable[str]:
    longest = profile.max_extend
    if set(limits.modes) <= {Mode.DECODE}:
        longest = 1
    elif Mode.EXTEND not in limits.modes:
        longest = min(longest, 32)  # chains are drawn short
    found = [f"extend=tile{t}{name}" for t in (16, 64, 128, 256) for name, by in _OFFSETS if t + by > longest]
    if profile.max_requests <= 32:
        found.append("more than 32 requests")
    if profile.max_prefix < LONG:
        found += ["one row on a long prefix", "many rows on a long prefix"]
    found += [f"group {n}" for n in (1, 4, 7, 8, 16) if n > profile.max_qo_heads]
    return found


_OFFSETS = (("-1", -1), ("", 0), ("+1", 1))
