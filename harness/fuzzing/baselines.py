"""What a session is compared with: cases as other suites have them.

uniform: every length anywhere in its range, every field any of its values
grid:    the cross product of a few round sizes, as the libraries' own tests parametrise, all requests alike;
         in an order that a seed shuffles, because nobody says which point comes first
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

from cases.draw_limits import DrawLimits, Profile
from cases.errors import CaseError
from cases.schema import AttentionCase, Execution, Mode, PageOrder, Request
from cases.strategies import within_budget

# After flashinfer tests/attention/test_batch_prefill_kernels.py and flash-attention tests/test_flash_attn.py, with
# lengths brought within the quick profile; both fill a batch with requests of one length.
GRID_BATCH = (1, 3, 5)
GRID_LENGTHS = ((54, 37), (97, 17), (128, 64), (217, 3), (256, 1), (113, 77))
GRID_PAGES = (1, 5, 16)
GRID_HEADS = ((1, 1), (4, 4), (8, 2), (6, 3))
GRID_HEAD_DIMS = (64, 128)
GRID_WINDOWS = (None, 64)
GRID_CAPS = (None, 30.0)


def uniform_cases(limits: DrawLimits, bounds: Profile, seed: int) -> Iterator[AttentionCase]:
    """Without end; the same for a seed."""
    rng = random.Random(f"uniform/{seed}")
    while True:
        mode = rng.choice(limits.modes)
        longest = 1 if mode is Mode.DECODE else bounds.max_extend if mode is Mode.EXTEND else min(32, bounds.max_extend)
        fields = _uniform_fields(rng, limits, bounds)
        lengths = [
            (rng.randint(0, bounds.max_prefix), rng.randint(1, longest))
            for _ in range(rng.randint(1, bounds.max_requests))
        ]
        requests = within_budget(lengths, bounds, fields)
        captured = None
        if mode in limits.graph_modes and rng.random() < 0.5:
            most = max(r.extend_len for r in requests)
            captured = tuple(Request(rng.randint(0, bounds.max_prefix), most) for _ in requests)
        splits = rng.choice((None, 1, 2, 3, 7, 32)) if limits.num_splits else None
        execution = Execution(captured, splits, rng.choice(("clean", "dirty")))
        yield AttentionCase(requests=requests, mode=mode, execution=execution, **fields)


def _uniform_fields(rng: random.Random, limits: DrawLimits, bounds: Profile) -> dict[str, Any]:
    group = rng.choice([g for g in limits.group_sizes if g <= bounds.max_qo_heads])
    kv_heads = rng.randint(1, max(1, bounds.max_qo_heads // group))
    head_dim, dtype = rng.choice(limits.head_dims), rng.choice(limits.dtypes)
    windows = ([None] if limits.full else []) + ([rng.randint(0, bounds.max_prefix)] if limits.window else [])
    return {
        "window_left": rng.choice(windows),
        "logits_soft_cap": rng.choice((None, rng.uniform(1.0, 50.0))) if limits.softcap else None,
        "sinks": limits.sinks and rng.random() < 0.5,
        "causal": not (limits.bidirectional and rng.random() < 0.5),
        "num_qo_heads": kv_heads * group,
        "num_kv_heads": kv_heads,
        "head_dim_qk": head_dim,
        "head_dim_vo": head_dim,
        "dtype": dtype,
        "kv_dtype": dtype,
        "page_size": rng.choice(limits.page_sizes),
        "page_order": rng.choice([order for order in PageOrder if order is not PageOrder.FAR_END]),
        "kv_layout": rng.choice(limits.kv_layouts),
        "poison": rng.choice(limits.poisons),
        "seed": rng.randint(0, 1 << 20),
    }


def grid_cases(limits: DrawLimits, bounds: Profile, seed: int) -> Iterator[AttentionCase]:
    """Each point of the grid that `limits` take, once."""
    modes = [mode for mode in (Mode.EXTEND, Mode.DECODE) if mode in limits.modes]
    points = list(
        itertools.product(
            modes,
            GRID_BATCH,
            GRID_LENGTHS,
            GRID_PAGES,
            GRID_HEADS,
            GRID_HEAD_DIMS,
            GRID_WINDOWS,
            GRID_CAPS,
            (True, False),
        )
    )
    random.Random(f"grid/{seed}").shuffle(points)
    for mode, batch, (prefix, extend), page, (heads, kv_heads), dim, window, cap, causal in points:
        if (
            (page not in limits.page_sizes and page != 5)
            or dim not in limits.head_dims
            or (window is None and not limits.full)
            or (window is not None and not limits.window)
            or (cap is not None and not limits.softcap)
            or not (causal or limits.bidirectional)
        ):
            continue
        fields = {"num_qo_heads": heads, "num_kv_heads": kv_heads, "head_dim_qk": dim, "head_dim_vo": dim}
        extend = 1 if mode is Mode.DECODE else extend
        requests = within_budget([(prefix, extend)] * batch, bounds, fields)
        try:
            yield AttentionCase(
                requests=requests,
                mode=mode,
                page_size=page,
                window_left=window,
                logits_soft_cap=cap,
                causal=causal,
                num_qo_heads=heads,
                num_kv_heads=kv_heads,
                head_dim_qk=dim,
                head_dim_vo=dim,
            )
        except CaseError:
            continue
