"""What a generated case may be: narrowed to what an adapter takes, bounded to what a run can pay.

Plain values that need no hypothesis, so that whoever declares capabilities can make them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cases.errors import CaseError
from cases.schema import AttentionCase, KvLayout, Mode, Poison

# Candidates, simplest first: an adapter's limits are a selection from these.
HEAD_DIMS = (64, 128, 256, 32, 96, 80, 192)
PAGE_SIZES = (1, 16, 64, 2, 3, 4, 8, 32, 128, 256)
GROUP_SIZES = (1, 4, 8, 2, 7, 3, 5, 6, 16)


def _any_case(case: AttentionCase) -> bool:
    del case
    return True


@dataclass(frozen=True, slots=True)
class DrawLimits:
    """What is drawn. Every tuple is in order of preference: shrinking goes to its first value.

    window, full:  cases with a window, cases without one (at least one of the two)
    kv_dtypes:     fp8 cache types beside the case's own dtype
    graph_modes:   modes that are also drawn as CUDA-graph replays
    accepts:       what no field says; a case it refuses is drawn again, so keep that rare
    """

    modes: tuple[Mode, ...] = (Mode.EXTEND, Mode.DRAFT_EXTEND_V2, Mode.DECODE, Mode.TARGET_VERIFY)
    dtypes: tuple[str, ...] = ("bfloat16", "float16")
    kv_dtypes: tuple[str, ...] = ()
    window: bool = True
    full: bool = True
    softcap: bool = True
    sinks: bool = False
    bidirectional: bool = False
    graph_modes: tuple[Mode, ...] = ()
    num_splits: bool = False
    head_dims: tuple[int, ...] = (64, 128)
    head_dim_vo_differs: bool = False
    page_sizes: tuple[int, ...] = PAGE_SIZES
    group_sizes: tuple[int, ...] = GROUP_SIZES
    kv_layouts: tuple[KvLayout, ...] = (KvLayout.NHD,)
    empty_extends: bool = True
    poisons: tuple[Poison, ...] = (Poison.FINITE, Poison.ZERO, Poison.NAN)
    recipes: tuple[str, ...] = ("normal", "spiky", "small")
    accepts: Callable[[AttentionCase], bool] = _any_case

    def __post_init__(self) -> None:
        for name in ("modes", "dtypes", "head_dims", "page_sizes", "group_sizes", "kv_layouts", "poisons", "recipes"):
            if not getattr(self, name):
                raise CaseError(f"the limits leave no {name} to draw; give at least one.")
        if not (self.window or self.full):
            raise CaseError("the limits allow neither a window nor none; set window or full.")


@dataclass(frozen=True, slots=True)
class Profile:
    """How large a generated case may be.

    max_scores:      sum of extend_len * kv_len * num_qo_heads, what the reference computes
    max_kv_elements: total_kv * num_kv_heads * (head_dim_qk + head_dim_vo), what the pool holds
    """

    name: str
    max_requests: int
    max_prefix: int
    max_extend: int
    max_qo_heads: int
    max_scores: int
    max_kv_elements: int


PROFILES: dict[str, Profile] = {
    profile.name: profile
    for profile in (
        Profile("quick", 5, 300, 80, 8, 400_000, 400_000),
        Profile("ci", 8, 700, 140, 16, 2_000_000, 2_000_000),
        Profile("nightly", 40, 5000, 600, 64, 50_000_000, 40_000_000),
        Profile("long-context", 4, 140_000, 64, 16, 100_000_000, 150_000_000),
    )
}


def find_profile(name: str) -> Profile:
    """Raises CaseError if there is none of that name."""
    profile = PROFILES.get(name)
    if profile is None:
        raise CaseError(f"no profile is called {name!r}; use one of {', '.join(PROFILES)}.")
    return profile
