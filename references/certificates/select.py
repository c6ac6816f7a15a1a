"""SELECT: every row picks one key, and its output is that key's V, exactly.

K rows are +-1 words of a code with a guaranteed distance; q is a multiple A of one of them. All other
scores are lower by at least 104, where fp32 exp underflows to 0: the output is V[target] and nothing else,
and LSE = A * head_dim * scale. Targets visit the pages in turn and, by some heads, the edges of the window.

The words are those of the second-order Reed-Muller code RM(2, m) of length 2^m: 1 + m + m(m-1)/2 message
bits, distance 2^m / 4 (MacWilliams and Sloane, ch. 13). At head_dim 64 that is 22 bits, so that any two
of four million keys agree in at most 48 of 64 columns: a score gap of half the full score, proven.
"""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor

from cases import counter_hash
from cases.ragged import Rows, indptr, kv_rows, query_rows
from cases.recipes import LogicalData, torch_dtype
from cases.schema import AttentionCase
from references.certificates.base import Certificate, CertificateData, neutral_sinks, per_head
from references.certificates.codes import sign_codes
from references.certificates.domain import wide_enough
from references.certificates.exact import Sums, packed_intervals
from references.traits import KernelTraits
from references.visibility import visible_interval

UNDERFLOW = 104.0  # exp(-104) < 2^-150, half the smallest fp32 subnormal
SELECT_MARGIN = 0.05  # of the recovered weight, which is 1


def _order(case: AttentionCase) -> int:
    """m: the code has length 2^m, the columns beyond repeat its first ones."""
    return case.head_dim_qk.bit_length() - 1


def _generator(order: int) -> Tensor:
    """float32 [message bits, 2^order]: constants, coordinates, and products of two coordinates."""
    points = torch.arange(1 << order)
    coordinates = [(points >> i) & 1 for i in range(order)]
    products = [a * b for a, b in itertools.combinations(coordinates, 2)]
    return torch.stack([torch.ones_like(points), *coordinates, *products]).float()


def message_bits(case: AttentionCase) -> int:
    order = _order(case)
    return 1 + order + order * (order - 1) // 2


def code_words(case: AttentionCase, rows: Rows, kv_head: int) -> Tensor:
    """int8 [n, head_dim_qk] of +-1: a word per position, others for other requests and kv heads."""
    bits = min(message_bits(case), 62)
    modulus = 1 << bits
    zero = torch.zeros(case.num_requests, dtype=torch.int64, device=rows.position.device)
    salt = counter_hash.row_keys(
        counter_hash.stream_key(case.seed, f"select/k/{kv_head}"), torch.arange(len(zero), device=zero.device), zero
    )
    # An odd multiplier and a shift xor are bijections of the message space: positions stay apart.
    message = (rows.position + ((salt >> 1) & (modulus - 1))[rows.request]) & (modulus - 1)
    multiplier = 0x9E3779B97F4A7C15 % modulus | 1
    message = (message * multiplier) & (modulus - 1)
    message = message ^ (message >> (bits // 2))
    message = (message * multiplier) & (modulus - 1)
    digits = ((message[:, None] >> torch.arange(bits, device=message.device)) & 1).float()
    generator = _generator(_order(case))[:bits].to(message.device)
    word = 1 - 2 * torch.matmul(digits, generator).remainder(2)
    repeats = -(-case.head_dim_qk // word.shape[1])
    return word.repeat(1, repeats)[:, : case.head_dim_qk].to(torch.int8)


def amplitude(case: AttentionCase) -> float:
    """A: the smallest power of two that puts all other keys UNDERFLOW below the target."""
    gap = 2 * (1 << _order(case)) / 4
    return 2.0 ** math.ceil(math.log2(UNDERFLOW / (gap * case.scale * case.k_scale)))


def select_targets(case: AttentionCase, device: torch.device | str) -> Tensor:
    """int64 [total_q, num_qo_heads]: the position that each row and head picks, page after page.

    A quarter of all (row, head) picks the first visible key, a quarter the last.
    """
    rows = query_rows(case, device)
    first, last = visible_interval(case, rows)
    last = torch.maximum(last, first + 1)
    step = torch.arange(case.num_qo_heads, device=device) + rows.position[:, None] * case.num_qo_heads
    pages = (last - 1) // case.page_size - first // case.page_size + 1
    page = first[:, None] // case.page_size + step % pages[:, None]
    keys = counter_hash.row_keys(counter_hash.stream_key(case.seed, "select/offset"), rows.request, rows.position)
    within = (counter_hash.bits(keys, case.num_qo_heads) >> 33).remainder(case.page_size)
    target = page * case.page_size + within
    target = torch.maximum(torch.minimum(target, last[:, None] - 1), first[:, None])
    place = (torch.arange(case.num_qo_heads, device=device) + rows.position[:, None]) % 4
    target = torch.where(place == 0, first[:, None], target)
    return torch.where(place == 1, last[:, None] - 1, target)


def build(case: AttentionCase, device: torch.device | str) -> CertificateData:
    keys, rows = kv_rows(case, device), query_rows(case, device)
    start = indptr([r.kv_len for r in case.requests], device, torch.int64)
    packed = select_targets(case, device) + start[rows.request][:, None]
    words = torch.stack([code_words(case, keys, head) for head in range(case.num_kv_heads)], 1)
    codes = sign_codes(case.seed, "select/v", keys, case.num_kv_heads, case.head_dim_vo)
    kv_head = torch.arange(case.num_qo_heads, device=device) // case.group_size
    intervals = packed_intervals(case, device)
    sees_one = (intervals.end > intervals.begin).long()[:, None].expand(-1, case.num_qo_heads)
    packed = packed.clamp(max=keys.position.numel() - 1)
    kv_dtype = torch_dtype(case.kv_dtype)
    score = amplitude(case) * case.head_dim_qk * case.scale * case.k_scale
    return CertificateData(
        data=LogicalData(
            q=(words[packed, kv_head].float() * amplitude(case)).to(torch_dtype(case.dtype)),
            k=words.float().to(kv_dtype),
            v=codes.float().to(kv_dtype),
            sinks=neutral_sinks(case, device),
        ),
        codes=codes,
        exact=Sums(codes[packed, kv_head].long() * sees_one[:, :, None], sees_one),
        intervals=intervals,
        lse_offset=per_head(case, score, device),
        sum_bound=1,
        max_score=score,
        count_margin=SELECT_MARGIN,
        targets=packed,
    )


def domain(case: AttentionCase, traits: KernelTraits) -> str | None:
    reason = wide_enough(case, traits)
    if reason is not None:
        return reason
    if case.logits_soft_cap is not None:
        return "a softcap leaves no gap of 104 between scores"
    if message_bits(case) < 62 and case.max_kv_len > 1 << message_bits(case):
        return f"head_dim_qk {case.head_dim_qk} has code words for {1 << message_bits(case)} keys"
    limit = {"float16": 65504.0}.get(case.dtype, 1e30)
    if amplitude(case) > limit:
        return f"sm_scale {case.scale:g} asks for queries that {case.dtype} cannot hold"
    return None


SELECT = Certificate(
    name="select",
    summary="one key per row and head: K slot, q row, head mapping, scale through the LSE",
    build=build,
    domain=domain,
    sees=(
        "window one key shorter",
        "causal edge one earlier",
        "prefix only",
        "K page wrong",
        "V page wrong",
        "kv head rotated",
        "q head rotated",
        "scale off by 1/16",
        "half of head_dim",
    ),
    blind_to=("window one key longer", "causal edge one later", "window ignored", "bf16 accumulator", "sink in base 2"),
)
