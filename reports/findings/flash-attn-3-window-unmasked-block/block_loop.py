"""Which keys vLLM's FlashAttention 3 leaves unmasked under a causal window: its block loop, written down.

    python block_loop.py 231 40 242 5 128     # prefix, extend, window_left, query heads per kv head, head_dim

Source: hopper/block.h (get_n_block_min_max), hopper/tile_size.h and the IntraWGOverlap branch of mma() in
hopper/mainloop_fwd_sm90_tma_gmma_ws.hpp of vllm-project/flash-attention; names as there. One split, one request.
"""

from __future__ import annotations

import sys

TILES = {96: (192, 128), 128: (128, 128), 192: (128, 96), 256: (128, 64)}  # head_dim: kBlockM, kBlockN


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def wrong_rows(prefix: int, extend: int, window_left: int, group: int, head_dim: int) -> dict[tuple[int, int], range]:
    """(query position, head of the group) -> the keys after the query that it sees all the same."""
    block_m, block_n = TILES[head_dim]
    if head_dim == 128 and extend * group <= 64:
        block_m = 64  # use_one_mma_wg
    seqlen_k = prefix + extend
    if window_left >= seqlen_k - 1:
        return {}  # runs as plain causal
    seen: dict[tuple[int, int], range] = {}
    for m_block in range(ceil_div(extend * group, block_m)):
        m_idx_min = m_block * block_m // group
        m_idx_max = ((m_block + 1) * block_m - 1) // group + 1
        n_offset = max(0, m_idx_min + prefix - window_left)
        shifted = seqlen_k - n_offset
        n_block_max = min(ceil_div(shifted, block_n), ceil_div(m_idx_max + shifted - extend, block_n))
        # The fault: both limits should be taken with `shifted` in place of seqlen_k.
        masked_on_the_right = max(0, (m_idx_min + seqlen_k - extend) // block_n)
        unmasked = max(0, ceil_div(m_idx_max + seqlen_k - extend - window_left, block_n))
        # Blocks that no_mask_fn runs, next to each other: keys start to end - 1.
        last = min(n_block_max - 1, masked_on_the_right)
        start, end = n_offset + unmasked * block_n, min(n_offset + last * block_n, seqlen_k)
        for row in range(m_block * block_m, min((m_block + 1) * block_m, extend * group)):
            position = prefix + row // group
            if max(position + 1, start) < end:
                seen[position, row % group] = range(max(position + 1, start), end)
    return seen


if __name__ == "__main__":
    rows = wrong_rows(*map(int, sys.argv[1:]))
    print(f"{len(rows)} wrong rows")
    for (position, head), keys in sorted(rows.items()):
        print(f"query {position} head {head}: keys {keys.start} to {keys.stop - 1}")
