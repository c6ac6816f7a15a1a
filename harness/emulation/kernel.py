"""The attention computation that all emulated kernels share: one request at a time, keys in blocks.

Numerics are those of a tensor-core kernel: dot products of low-precision inputs accumulate in fp32,
the softmax is fp32 with a running maximum, probabilities are rounded to the input dtype before they
meet V, and partial states of kv splits stay fp32 until they are combined. Only the keys that some
row can see are loaded, so a window over a long context is cheap.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from cases.schema import KvLayout
from harness.emulation.hooks import EmulatedCudaError, Hooks, Launch, RequestCall, Tile

KV_TILE = 128
BLOCK_SCORES = 1 << 23  # scores of one block: 32 MiB of fp32

Fetch = Callable[[str, Tensor], Tensor]  # ("k" or "v", positions int64 [K]) -> [K, Hk, D]


@dataclass(frozen=True, slots=True)
class _State:
    """A partial softmax state: acc [Hk, G, R, Dv] unnormalised, total and top [Hk, G, R, 1]."""

    acc: Tensor
    total: Tensor
    top: Tensor


def run_requests(
    launch: Launch,
    hooks: Hooks,
    q: Tensor,
    rows: list[tuple[int, int]],
    kv_lens: list[int],
    fetch: Callable[[RequestCall], Fetch],
    out: Tensor,
    lse: Tensor,
    *,
    custom_mask: Callable[[int], Tensor] | None = None,
    sinks: Tensor | None = None,
) -> None:
    """Fill `out` [tokens, Hq, Dv] and `lse` fp32 natural [tokens, Hq] in place.

    rows:        (first, end) row in q of every request
    kv_lens:     keys of every request
    fetch:       gives the loader of a request's keys
    custom_mask: bool [qo_len, kv_len] of a request, by index; replaces causal, not the window
    sinks:       fp32 [Hq], natural logits in the denominator
    """
    for index, ((start, end), length) in enumerate(zip(rows, kv_lens, strict=True)):
        if end <= start:
            continue
        written = end if launch.max_seqlen_q is None else min(end, start + launch.max_seqlen_q)
        request = RequestCall(launch, index, start, end - start, length)
        mask = None if custom_mask is None else custom_mask(index)
        part_out, part_lse = _request(request, hooks, q[start:end], fetch(request), mask, sinks, out.shape[-1])
        at, count = hooks.row_offset(request, start), written - start
        if at < 0 or at + count > out.shape[0]:
            raise EmulatedCudaError(f"illegal memory access: output rows {at}..{at + count} of {out.shape[0]}")
        out[at : at + count] = part_out[:count].to(out.dtype)
        lse[at : at + count] = part_lse[:count]


def _request(
    request: RequestCall,
    hooks: Hooks,
    q: Tensor,
    fetch: Fetch,
    custom: Tensor | None,
    sinks: Tensor | None,
    head_dim_vo: int,
) -> tuple[Tensor, Tensor]:
    """fp32 out [R, Hq, Dv] and natural lse [R, Hq] of one request."""
    launch, device = request.launch, q.device
    q = hooks.load(request, "q", q)
    length = hooks.kv_len(request, request.kv_len)
    rows = torch.arange(request.qo_len, device=device)
    position = hooks.query_position(request, rows + (length - request.qo_len))
    left, right = hooks.window(request, *launch.window)
    first = torch.zeros_like(position) if left < 0 else (position - left).clamp(min=0)
    if launch.tile_start_left is not None:
        first = torch.maximum(first, _tile_starts(launch, length, request.qo_len, rows))
    last = torch.full_like(position, length) if right < 0 else (position + right + 1).clamp(max=length)
    if launch.max_seqlen_k is not None:
        last = last.clamp(max=launch.max_seqlen_k)
    low, high = int(first.min()), int(last.max())
    low, high = hooks.key_range(request, low, max(low, high))

    kv_heads, group = launch.num_kv_heads, launch.group_size
    mapped: Tensor | None = None
    if hooks.overrides("head_map"):
        mapped = hooks.head_map(launch, torch.arange(launch.num_qo_heads, device=device) // group)
    inner = (launch.num_qo_heads, 1) if mapped is not None else (kv_heads, group)
    grouped = q.float().view(request.qo_len, *inner, -1).permute(1, 2, 0, 3).contiguous()

    seen = torch.zeros(request.qo_len, dtype=torch.bool, device=device)
    bounds = hooks.split(request, _split_bounds(low, high, launch.num_splits))
    states = []
    for index, (begin, end) in enumerate(bounds):
        state = _empty_state(grouped, head_dim_vo, launch.mask_fill)
        step = max(KV_TILE, BLOCK_SCORES // max(1, grouped.shape[0] * grouped.shape[1] * request.qo_len))
        for at in range(begin, end, step):
            keys = torch.arange(at, min(end, at + step), device=device)
            tile = Tile(request, index, keys, position)
            visible = (keys >= first[:, None]) & (keys < last[:, None])
            if custom is not None:
                inside = keys.clamp(max=custom.shape[1] - 1)
                visible = visible & custom[:, inside] & (keys < custom.shape[1])
            visible = hooks.mask(tile, visible)
            k, v = fetch("k", keys), fetch("v", keys)
            if mapped is not None:
                k, v = k[:, mapped], v[:, mapped]
            state = _block(tile, hooks, grouped, k, v, visible, state)
            seen |= visible.reshape(-1, *visible.shape[-2:]).any(-1).any(0)
        states.append(state)
    out, lse, top = _combine(hooks, states, grouped, head_dim_vo, launch)
    if sinks is not None:
        out, lse = _add_sink(request, hooks, sinks, out, lse, top)
    out = out.permute(2, 0, 1, 3).reshape(request.qo_len, launch.num_qo_heads, head_dim_vo)
    lse = lse.permute(2, 0, 1, 3).reshape(request.qo_len, launch.num_qo_heads)
    return hooks.empty_row(request, out, lse, ~seen)


def _tile_starts(launch: Launch, length: int, qo_len: int, rows: Tensor) -> Tensor:
    """First key of the first kv tile of each row's query tile, for a window that only moves tiles.

    FlashInfer fa2 packs the heads of a group into its query tile, and starts reading at the left bound of
    the tile's first row, to the key (prefill.cuh, `kv_start_idx`).
    """
    assert launch.tile_start_left is not None
    first_row = rows * launch.group_size // launch.query_tile * launch.query_tile // launch.group_size
    return (first_row + length - qo_len - launch.tile_start_left).clamp(min=0)


def _split_bounds(low: int, high: int, num_splits: int) -> list[tuple[int, int]]:
    """Key ranges of the splits, whole tiles each; fewer when there are fewer tiles."""
    tiles = -(-(high - low) // KV_TILE)
    splits = max(1, min(num_splits, tiles))
    size = -(-tiles // splits) * KV_TILE
    return [(at, min(high, at + size)) for at in range(low, high, size)] if high > low else [(low, low)]


def _empty_state(grouped: Tensor, head_dim_vo: int, mask_fill: float) -> _State:
    """FlashInfer starts from (max = sentinel, sum = 1); a kernel that fills with -inf starts from 0."""
    shape = (*grouped.shape[:3], 1)
    finite = mask_fill > -torch.inf
    return _State(
        acc=grouped.new_zeros((*grouped.shape[:3], head_dim_vo)),
        total=grouped.new_full(shape, 1.0 if finite else 0.0),
        top=grouped.new_full(shape, mask_fill),
    )


def _block(tile: Tile, hooks: Hooks, q: Tensor, k: Tensor, v: Tensor, visible: Tensor, state: _State) -> _State:
    """Fold one block of keys into a state."""
    request, launch = tile.request, tile.request.launch
    heads, group, rows, _ = q.shape
    flat = torch.matmul(q.view(heads, group * rows, -1), k.float().permute(1, 2, 0))
    raw = flat.view(heads, group, rows, -1)
    scores = raw * hooks.scale(request, launch.sm_scale)
    cap = hooks.soft_cap(request, launch.soft_cap)
    if cap > 0:
        scores = cap * torch.tanh(scores / cap)
    scores = scores.masked_fill(~visible, launch.mask_fill)
    scores = hooks.score(tile, raw, scores)
    top = torch.maximum(state.top, scores.amax(-1, keepdim=True))
    shift = top.clamp(min=torch.finfo(torch.float32).min)  # no key so far: exp(-inf) is 0, not NaN
    p = hooks.probability(tile, (scores - shift).exp_())
    rounded = p.to(v.dtype).float() if v.element_size() > 1 else p
    total = (rounded if launch.sum_rounded else p).sum(-1, keepdim=True)
    keep = torch.exp(state.top - shift)
    pv = torch.matmul(rounded.view(heads, group * rows, -1), v.float().permute(1, 0, 2))
    return _State(
        acc=state.acc * keep + pv.view(heads, group, rows, -1),
        total=state.total * keep + hooks.row_sum(tile, total),
        top=top,
    )


def _combine(
    hooks: Hooks, states: list[_State], grouped: Tensor, head_dim_vo: int, launch: Launch
) -> tuple[Tensor, Tensor, Tensor]:
    """out [Hk, G, R, Dv], natural lse and row maximum [Hk, G, R, 1] of all splits together."""
    if not states:
        states = [_empty_state(grouped, head_dim_vo, launch.mask_fill)]
    outs, lses = [], []
    for state in states:
        empty = state.total == 0
        outs.append(torch.where(empty, 0.0, state.acc / torch.where(empty, 1.0, state.total)))
        lses.append(torch.where(empty, -torch.inf, state.top + torch.log(state.total)))
    top = torch.stack([state.top for state in states]).amax(0)
    if len(states) == 1:
        out, lse = outs[0], lses[0]
    else:
        parts = torch.stack(lses)
        lse = torch.logsumexp(parts, 0)
        weights = torch.exp(parts - lse).nan_to_num(0.0)  # all empty: -inf - -inf
        weights = hooks.merge("split", weights[..., 0])[..., None]
        out = (torch.stack(outs) * weights).sum(0)
        lse = hooks.merged_lse("split", lse[..., 0], parts[..., 0])[..., None]
    if launch.mask_fill == -torch.inf:
        lse = torch.where(lse == -torch.inf, launch.empty_lse, lse)
    return out, lse, top


def _add_sink(
    request: RequestCall, hooks: Hooks, sinks: Tensor, out: Tensor, lse: Tensor, top: Tensor
) -> tuple[Tensor, Tensor]:
    """A sink enlarges the denominator and the LSE and has no value row; an empty row's LSE is the sink."""
    logits = sinks.float().view(*out.shape[:2], 1, 1)
    empty = ~torch.isfinite(lse)
    top = torch.where(empty, logits, top)
    term = hooks.sink(request, logits, top, torch.exp(logits - top))
    denominator = torch.where(empty, 0.0, torch.exp(lse - top)) + term
    scale = torch.where(empty, 0.0, torch.exp(lse - top)) / denominator
    return out * scale, top + torch.log(denominator)


# -- loaders -------------------------------------------------------------------------------------
def ragged_fetch(request: RequestCall, hooks: Hooks, k: Tensor, v: Tensor, start: int) -> Fetch:
    """Loads keys of a packed tensor [total, Hk, D] from row `start` on."""
    operands = {"k": k, "v": v}

    def fetch(operand: str, positions: Tensor) -> Tensor:
        rows = hooks.slot(request, operand, positions, positions + start)
        source = operands[operand]
        _check_slots(rows, source.shape[0], operand)
        return hooks.load(request, operand, source[rows])

    return fetch


def paged_fetch(
    request: RequestCall, hooks: Hooks, k_pool: Tensor, v_pool: Tensor, pages: Tensor, layout: KvLayout
) -> Fetch:
    """Loads keys through `pages`, int [columns]: the physical page of each logical one."""
    page_size = k_pool.shape[1] if layout is KvLayout.NHD else k_pool.shape[2]
    pools = {
        name: pool if layout is KvLayout.NHD else pool.transpose(1, 2) for name, pool in (("k", k_pool), ("v", v_pool))
    }

    def fetch(operand: str, positions: Tensor) -> Tensor:
        logical = positions // page_size
        if logical.numel() and int(logical[-1]) >= pages.numel():
            raise EmulatedCudaError(
                f"illegal memory access: request {request.index} reads page {int(logical[-1])} of its "
                f"{pages.numel()} page table columns"
            )
        physical = hooks.page_lookup(request, logical, pages.long()[logical])
        slots = hooks.slot(request, operand, positions, physical * page_size + positions % page_size)
        pool = pools[operand]
        _check_slots(slots, pool.shape[0] * page_size, operand)
        return hooks.load(request, operand, pool[slots // page_size, slots % page_size])

    return fetch


def _check_slots(slots: Tensor, count: int, operand: str) -> None:
    if slots.numel() and (int(slots.min()) < 0 or int(slots.max()) >= count):
        raise EmulatedCudaError(f"illegal memory access: {operand} slot outside 0..{count - 1}")
