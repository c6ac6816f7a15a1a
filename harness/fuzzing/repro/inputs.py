"""The first part of a repro: the case's lengths and layout as plain numbers, and tensors made from them."""

from __future__ import annotations

from cases.paging import make_paging
from cases.pools import POISON_V
from cases.schema import AttentionCase, KvLayout, Poison

MOST_PAGES = 600  # entries of a page table that are still written out
STALE = {Poison.ZERO: "0.0", Poison.FINITE: str(POISON_V), Poison.NAN: "float('nan')"}


def inputs_text(case: AttentionCase, *, flat: bool, device: str, seed: int = 0, in_pool: str = "p + e") -> str:
    """Constants and tensors. `flat`: q = 0 and V of +-1, so that every visible key weighs the same.

    in_pool: how many keys of a request are in the cache before the call, in terms of p (prefix) and e.
    """
    return f"{_constants(case, device)}\n{_tensors(case, flat, seed, in_pool)}"


def _constants(case: AttentionCase, device: str) -> str:
    paging = make_paging(case, "cpu")
    pages = [row[:owned] for row, owned in zip(paging.page_table.tolist(), paging.owned, strict=True)]
    table = repr(pages)
    if sum(paging.owned) > MOST_PAGES:
        starts = [1 + sum(paging.owned[:i]) for i in range(case.num_requests)]
        ranges = [f"range({s}, {s + n})" for s, n in zip(starts, paging.owned, strict=True)]
        table = f"[list(r) for r in ({', '.join(ranges)},)]"
    window = "None" if case.window_left is None else str(case.window_left)
    return "\n".join(
        [
            f'DEV, DTYPE = "{device}", torch.{case.dtype}',
            f"REQUESTS = {[tuple(r) for r in case.requests]}  # (cached keys, new rows) of each request",
            f"HQ, HK, D, DV = {case.num_qo_heads}, {case.num_kv_heads}, {case.head_dim_qk}, {case.head_dim_vo}",
            f"WINDOW, CAUSAL, CAP, SCALE = {window}, {case.causal}, {case.logits_soft_cap or 0.0}, {case.scale!r}",
            f"PAGE, NUM_PAGES = {case.page_size}, {paging.num_pages}",
            f"PAGES = {table}  # pages of each request, in order",
        ]
    )


def _tensors(case: AttentionCase, flat: bool, seed: int, in_pool: str) -> str:
    q = "torch.zeros" if flat else "torch.randn"
    v = (
        "torch.randint(0, 2, (p + e, HK, DV), device=DEV).mul(2).sub(1).to(DTYPE)"
        if flat
        else "torch.randn(p + e, HK, DV, device=DEV).to(DTYPE)"
    )
    gain = {"small": 0.1, "spiky": 2.0}.get(case.recipe, 1.0)
    scaled = "" if gain == 1.0 or flat else f" * {gain}"
    outside = "0.0" if case.poison is Poison.ZERO else "float('nan')"
    lines = [
        f"torch.manual_seed({seed})",
        f"Q = [({q}(e, HQ, D, device=DEV){scaled}).to(DTYPE) for p, e in REQUESTS]",
        "K = [torch.randn(p + e, HK, D, device=DEV).to(DTYPE) for p, e in REQUESTS]",
        f"V = [{v} for p, e in REQUESTS]",
    ]
    if case.sinks:
        lines.append("SINKS = (torch.randn(HQ, device=DEV) + 1).bfloat16().float()")
    stale_k = STALE[case.poison] if case.poison is not Poison.FINITE else "1.0"
    lines += [
        f"k_pool, v_pool = (torch.full((NUM_PAGES, PAGE, HK, d), {outside}, dtype=DTYPE, device=DEV) for d in (D, DV))",
        "SLOTS = [[page * PAGE + j for page in pages for j in range(PAGE)] for pages in PAGES]",
        "for (p, e), slots, k, v in zip(REQUESTS, SLOTS, K, V):",
        f"    for pool, x, stale in ((k_pool, k, {stale_k}), (v_pool, v, {STALE[case.poison]})):",
        "        pool.view(-1, *x.shape[1:])[slots] = stale  # what owned slots without a key hold",
        f"        pool.view(-1, *x.shape[1:])[slots[: {in_pool}]] = x[: {in_pool}]",
    ]
    if case.kv_layout is KvLayout.HND:
        lines.append("k_pool, v_pool = (x.transpose(1, 2).contiguous() for x in (k_pool, v_pool))  # HND")
    lines.append("q = torch.cat(Q)")
    return "\n".join(lines)
