"""Case number i of the study: drawn from a counter, so that any range of it can be run again."""

from __future__ import annotations

import random

import torch

from cases.schema import AttentionCase, KvLayout, PageOrder, Request
from tests.certificates.emulator import Kernel

HEADS = ((8, 2), (4, 4), (6, 2), (4, 1), (7, 1), (12, 4))
HEAD_DIMS = (64, 64, 64, 128, 96, 32)
WINDOWS = (None, None, 2, 31, 127, 300)


def drawn(index: int) -> tuple[AttentionCase, Kernel]:
    """A serving-shaped case of up to about 700 keys and 40 rows, and a kernel to run it."""
    rng = random.Random(index)
    q_heads, kv_heads = rng.choice(HEADS)
    dim = rng.choice(HEAD_DIMS)
    dtype = rng.choice(("bfloat16", "bfloat16", "float16"))
    fp8 = rng.random() < 0.15
    legs = rng.choice((1, 1, 2))
    case = AttentionCase(
        requests=tuple(
            Request(int(2 ** rng.uniform(0, 9.3)) - 1, rng.choice((1, 1, 2, 5, int(2 ** rng.uniform(0, 5)))))
            for _ in range(rng.choice((1, 2, 3)))
        ),
        num_qo_heads=q_heads,
        num_kv_heads=kv_heads,
        head_dim_qk=dim,
        head_dim_vo=dim,
        dtype=dtype,
        kv_dtype=rng.choice(("float8_e4m3fn", "float8_e5m2")) if fp8 else dtype,
        k_scale=rng.choice((1.0, 0.5, 0.37)) if fp8 else 1.0,
        v_scale=rng.choice((1.0, 2.0, 1.3)) if fp8 else 1.0,
        causal=rng.random() < 0.9,
        window_left=rng.choice(WINDOWS),
        logits_soft_cap=rng.choice((5.0, 30.0, 50.0)) if rng.random() < 0.25 else None,
        sinks=rng.random() < 0.3,
        sm_scale=rng.choice((None, None, None, 0.05, 1.0)),
        page_size=rng.choice((1, 4, 16, 64)),
        page_order=rng.choice(list(PageOrder)),
        kv_layout=rng.choice(list(KvLayout)),
        recipe=rng.choice(("normal", "small", "spiky")),
        seed=index,
    )
    kernel = Kernel(
        tile=rng.choice((16, 64, 128)),
        legs=legs,
        p_dtype=rng.choice((None, None, None, torch.float32)),
        round_row_sum=rng.random() < 0.5,
        log2_lse=legs == 2 or rng.random() < 0.3,
        tanh_bits=rng.choice((11, 24)),
        splits=rng.choice((1, 1, 3)),
    )
    return case, kernel
