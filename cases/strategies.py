"""Hypothesis strategies for cases: they draw what breaks kernels, and shrink to what people can read.

A length is drawn in two steps: a *band* (everything, or a few values around a page, tile or window
edge), then an integer in it. The integer is the length itself, so when the band shrinks to
"everything" the case stays the same and the integer can then shrink freely. Nothing is rejected:
what does not fit the profile's budget is cut off, what a limit excludes is never drawn.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from hypothesis import assume
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from cases.draw_limits import DrawLimits, Profile, find_profile
from cases.schema import MIN_SPARE_PAGES, AttentionCase, Execution, Mode, PageOrder, Request, pages_owned

Band = tuple[int, int]

TILES = (16, 64, 128, 256)
LONG_EDGES = (4096, 32768, 65536, 131072)
SHORT_EXTENDS = 8  # draft and verify chains, mostly
WINDOW_PAST_EVERYTHING = 200_000

NO_LIMITS = DrawLimits()


@lru_cache(maxsize=4096)
def _integers(low: int, high: int) -> SearchStrategy[int]:
    return st.integers(low, high)


@lru_cache(maxsize=4096)
def _pick(options: tuple[Any, ...]) -> SearchStrategy[Any]:
    return st.sampled_from(options)


def _length(draw: DrawFn, low: int, high: int, small: int, edges: Iterable[int], rare: tuple[Band, ...] = ()) -> int:
    """A length in [low, high]: a third anywhere, a third small, a third within one of an edge.

    `rare` bands, which may lie outside, come up once in fifteen draws or so.
    """
    everything, few = (low, high), (low, max(low, min(high, small)))
    near: list[Band] = [(max(low, e - 1), min(high, e + 1)) for e in sorted(set(edges)) if low <= e - 1 and e <= high]
    times = max(len(near), 7 * len(rare), 1)
    bands = [everything] * times + [few] * times + near * max(1, times // max(1, len(near))) + list(rare)
    at_low, at_high = draw(_pick(tuple(bands)))
    return draw(_integers(at_low, at_high))


@st.composite
def attention_cases(draw: DrawFn, profile: str | Profile = "quick", limits: DrawLimits = NO_LIMITS) -> AttentionCase:
    """Cases inside `limits`, each within the budget of `profile` (a name or a Profile)."""
    bounds = find_profile(profile) if isinstance(profile, str) else profile
    mode = draw(_pick(limits.modes))
    page_size = draw(_pick(limits.page_sizes))
    fields = _masks(draw, bounds, limits, page_size) | _heads(draw, bounds, limits)
    requests = _requests(draw, bounds, limits, mode, page_size, fields)
    fields |= _cache(draw, limits, requests, page_size, fields) | _data(draw, limits)
    execution = _execution(draw, bounds, limits, mode, requests, page_size)
    built = AttentionCase(requests=requests, mode=mode, page_size=page_size, execution=execution, **fields)
    assume(limits.accepts(built))
    return built


# -- masks, heads ------------------------------------------------------------------------------
def _masks(draw: DrawFn, bounds: Profile, limits: DrawLimits, page_size: int) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    choices = ([False] if limits.full else []) + ([True] * 2 if limits.window else [])
    if draw(_pick(tuple(choices))):
        edges = [2, page_size, *(tile - 1 for tile in TILES), bounds.max_prefix]
        fields["window_left"] = _length(draw, 0, bounds.max_prefix, 40, edges)
        if draw(_pick((False,) * 9 + (True,))):
            fields["window_left"] = WINDOW_PAST_EVERYTHING
    if limits.softcap:
        fields["logits_soft_cap"] = draw(_pick((None,) * 9 + (1.0, 2.0, 50.0)))
    if limits.sinks:
        fields["sinks"] = draw(_pick((False, False, True)))
    if limits.bidirectional:
        fields["causal"] = draw(_pick((True, True, True, False)))
    fields["sm_scale"] = draw(_pick((None,) * 6 + (0.25, 0.03)))
    return fields


def _heads(draw: DrawFn, bounds: Profile, limits: DrawLimits) -> dict[str, Any]:
    # Every case makes the same draws here: one that comes and goes with another's value would shift
    # those after it, and the shrinker could then lower neither.
    group = draw(_pick(limits.group_sizes))
    if group > bounds.max_qo_heads:
        group = min(limits.group_sizes)
    kv_heads = min(draw(_pick((1, 2, 4, 8, 3))), max(1, bounds.max_qo_heads // group))
    head_dim = draw(_pick(limits.head_dims))
    other = draw(_pick((head_dim, head_dim, *limits.head_dims))) if limits.head_dim_vo_differs else head_dim
    dtype = draw(_pick(limits.dtypes))
    kv_dtype = draw(_pick((dtype, dtype, dtype, *limits.kv_dtypes)))
    fields = {
        "num_qo_heads": kv_heads * group,
        "num_kv_heads": kv_heads,
        "head_dim_qk": head_dim,
        "head_dim_vo": other,
        "dtype": dtype,
        "kv_dtype": kv_dtype,
    }
    if kv_dtype != dtype:
        fields["k_scale"] = draw(_pick((1.0, 1.5, 0.25)))
        fields["v_scale"] = draw(_pick((1.0, 0.5, 2.0)))
    return fields


# -- requests ----------------------------------------------------------------------------------
def _requests(
    draw: DrawFn, bounds: Profile, limits: DrawLimits, mode: Mode, page_size: int, fields: dict[str, Any]
) -> tuple[Request, ...]:
    window = fields.get("window_left")
    # L hides the edge of its mask at L+1 keys, so both sides of it are edges.
    window_edges = () if window is None else (window, window + 1, window + 2)
    kv_edges = tuple(e for e in (page_size, 2 * page_size, *TILES, *LONG_EDGES, *window_edges) if e > 1)
    most = bounds.max_requests
    least = draw(_pick((1, 1, 1, 1, 1, 1, max(1, most // 2))))  # now and then a full batch
    pairs = draw(_request_lists(bounds, limits, mode, kv_edges, least, most))
    return within_budget(pairs, bounds, fields)


@lru_cache(maxsize=4096)
def _request_lists(
    bounds: Profile, limits: DrawLimits, mode: Mode, kv_edges: tuple[int, ...], least: int, most: int
) -> SearchStrategy[list[tuple[int, int]]]:
    return st.lists(_request_pairs(bounds, limits, mode, kv_edges), min_size=least, max_size=most)


@st.composite
def _request_pairs(
    draw: DrawFn, bounds: Profile, limits: DrawLimits, mode: Mode, kv_edges: tuple[int, ...]
) -> tuple[int, int]:
    # At most five draws a request, its list's "one more" among them: Hypothesis deletes runs of up to
    # five when it shrinks, and a longer request would stay in the case for good.
    empty = ((0, 0),) if limits.empty_extends else ()
    if mode is Mode.DECODE:
        extend = _length(draw, 1, 1, 1, (), empty)
    elif mode is Mode.EXTEND:
        extend = _length(draw, 1, bounds.max_extend, 9, [e for e in kv_edges if e <= bounds.max_extend], empty)
    else:
        extend = _length(draw, 1, min(bounds.max_extend, 4 * SHORT_EXTENDS), SHORT_EXTENDS, (4,), empty)
    ends = [e - extend for e in kv_edges if e > extend]  # prefix + extend on the edge
    prefix = _length(draw, 0, bounds.max_prefix, 20, [*kv_edges, *ends])
    return prefix, extend


def within_budget(pairs: list[tuple[int, int]], bounds: Profile, fields: dict[str, Any]) -> tuple[Request, ...]:
    """Cut requests, not draws: the first keep their lengths, later ones get what is left."""
    scores = bounds.max_scores // fields["num_qo_heads"]
    keys = bounds.max_kv_elements // (fields["num_kv_heads"] * (fields["head_dim_qk"] + fields["head_dim_vo"]))
    kept: list[Request] = []
    if not any(extend for _, extend in pairs):
        pairs = [*pairs[:-1], (pairs[-1][0], 1)]
    for prefix, extend in pairs:
        left = len(pairs) - len(kept)  # leave a fair share to those that follow
        extend = min(extend, max(1, min(keys // left, int((scores // left) ** 0.5))))
        room = min(keys - extend, scores // max(1, extend) - extend)
        prefix = min(prefix, max(0, room - (left - 1)))
        kept.append(Request(prefix, extend))
        keys -= prefix + extend
        scores -= extend * (prefix + extend)
    return tuple(kept)


# -- cache, data, execution --------------------------------------------------------------------
PAGE_ORDERS = (PageOrder.CONTIGUOUS, PageOrder.SHUFFLED, PageOrder.REVERSED, PageOrder.INTERLEAVED, PageOrder.FAR_END)


FAR_ELEMENTS = 6_000_000  # of a pool whose end is used: past every 16-bit offset, and still filled in milliseconds


def _cache(
    draw: DrawFn, limits: DrawLimits, requests: Sequence[Request], page_size: int, shape: dict[str, Any]
) -> dict[str, Any]:
    order = draw(_pick(PAGE_ORDERS))
    fields: dict[str, Any] = {"page_order": order, "kv_layout": draw(_pick(limits.kv_layouts))}
    if order is PageOrder.FAR_END:
        owned = sum(pages_owned(request, page_size) for request in requests)
        page = page_size * shape["num_kv_heads"] * (shape["head_dim_qk"] + shape["head_dim_vo"])
        fields["pool_pages"] = owned + MIN_SPARE_PAGES + draw(_integers(0, max(64, FAR_ELEMENTS // page)))
    return fields


def _data(draw: DrawFn, limits: DrawLimits) -> dict[str, Any]:
    return {
        "poison": draw(_pick((limits.poisons[0], *limits.poisons))),
        "recipe": draw(_pick((limits.recipes[0], limits.recipes[0], *limits.recipes))),
        "seed": draw(_integers(0, 3)),
    }


def _execution(
    draw: DrawFn, bounds: Profile, limits: DrawLimits, mode: Mode, requests: Sequence[Request], page_size: int
) -> Execution:
    captured = None
    if mode in limits.graph_modes and draw(_pick((False, True))):
        longest = max(request.extend_len for request in requests)
        extend = longest if mode is Mode.DECODE else longest + draw(_integers(0, 2))
        captured = tuple(
            Request(_length(draw, 0, bounds.max_prefix, 9, (request.prefix_len, page_size)), extend)
            for request in requests
        )
    splits = draw(_pick((None, None, 1, 2, 3, 7, 32))) if limits.num_splits else None
    return Execution(captured, splits, draw(_pick(("clean", "clean", "clean", "dirty"))))
