"""Attention of real models, at the batch shapes a serving engine makes of them.

Head counts, head dims, windows, soft caps and scales are those of the published model configs. A
config's `sliding_window` W counts the query's own key, so `window_left` is W - 1. Gemma's scale is
`query_pre_attn_scalar` ** -0.5, which is not always 1/sqrt(head_dim).

Sizes here are kept to about two seconds of the fp64 reference on one CPU core; `large_rows` are the
same models at the sizes of a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cases.schema import Mode
from cases.suites.table import Row, row

DECODE, DRAFT, VERIFY = Mode.DECODE, Mode.DRAFT_EXTEND_V2, Mode.TARGET_VERIFY

Model = dict[str, Any]
LLAMA_3_8B: Model = {"heads": (32, 8), "head_dim": 128}
LLAMA_3_70B: Model = {"heads": (64, 8), "head_dim": 128}
MISTRAL_7B: Model = {"heads": (32, 8), "head_dim": 128, "window_left": 4095}
QWEN3_8B: Model = {"heads": (32, 8), "head_dim": 128}
QWEN3_06B: Model = {"heads": (16, 8), "head_dim": 128}
QWEN3_30B_A3B: Model = {"heads": (32, 4), "head_dim": 128}
QWEN2_7B: Model = {"heads": (28, 4), "head_dim": 128}
GEMMA_2_2B_GLOBAL: Model = {"heads": (8, 4), "head_dim": 256, "logits_soft_cap": 50.0, "sm_scale": 256**-0.5}
GEMMA_2_2B_LOCAL: Model = {**GEMMA_2_2B_GLOBAL, "window_left": 4095}
GEMMA_2_9B_LOCAL: Model = {**GEMMA_2_2B_LOCAL, "heads": (16, 8)}
GEMMA_2_27B_LOCAL: Model = {
    "heads": (32, 16),
    "head_dim": 128,
    "logits_soft_cap": 50.0,
    "sm_scale": 144**-0.5,
    "window_left": 4095,
}
GEMMA_3_1B_LOCAL: Model = {"heads": (4, 1), "head_dim": 256, "window_left": 511, "sm_scale": 256**-0.5}
GEMMA_3_4B_LOCAL: Model = {"heads": (8, 4), "head_dim": 256, "window_left": 1023, "sm_scale": 256**-0.5}
GEMMA_3_4B_GLOBAL: Model = {"heads": (8, 4), "head_dim": 256, "sm_scale": 256**-0.5}
GEMMA_3_27B_LOCAL: Model = {"heads": (32, 16), "head_dim": 128, "window_left": 1023, "sm_scale": 168**-0.5}
GEMMA_3_27B_GLOBAL: Model = {"heads": (32, 16), "head_dim": 128, "sm_scale": 168**-0.5}
GPT_OSS_LOCAL: Model = {"heads": (64, 8), "head_dim": 64, "window_left": 127, "sinks": True}
GPT_OSS_GLOBAL: Model = {"heads": (64, 8), "head_dim": 64, "sinks": True}
PHI_3_MINI: Model = {"heads": (32, 32), "head_dim": 96, "window_left": 2046}


def _decode(*prefixes: int) -> tuple[tuple[int, int], ...]:
    return tuple((prefix, 1) for prefix in prefixes)


DECODE_BATCH = _decode(511, 17, 300, 64, 128, 5, 900, 33)
DECODE_SHORT = _decode(63, 64, 65, 127, 128, 1, 15, 16, 17, 100, 250, 2)
PREFILL = ((0, 33), (0, 100), (0, 64))
CHUNKED = ((512, 64), (0, 40), (100, 1))  # a chunk of a long prompt beside a short one and a decode
SHARED_PREFIX = ((256, 10), (256, 33), (256, 2))
DRAFTS = ((511, 4), (17, 4), (300, 2), (64, 4))
CHAIN = ((511, 5), (17, 5), (300, 5))


def _full_attention() -> Iterator[Row]:
    yield row("Llama-3-8B decode", *DECODE_BATCH, mode=DECODE, **LLAMA_3_8B)
    yield row("Llama-3-8B decode, page size 1", *DECODE_SHORT, mode=DECODE, page_size=1, **LLAMA_3_8B)
    yield row("Llama-3-8B prefill", *PREFILL, **LLAMA_3_8B)
    yield row("Llama-3-8B chunked prefill", *CHUNKED, **LLAMA_3_8B)
    yield row("Llama-3-8B shared prefix", *SHARED_PREFIX, page_size=1, **LLAMA_3_8B)
    yield row("Llama-3-8B draft extend", *DRAFTS, mode=DRAFT, **LLAMA_3_8B)
    yield row("Llama-3-8B draft graph", *DRAFTS, mode=DRAFT, capture=[(64, 4)] * 4, **LLAMA_3_8B)
    yield row("Llama-3-8B verify", *CHAIN, mode=VERIFY, **LLAMA_3_8B)
    yield row("Llama-3-70B decode", *DECODE_SHORT, mode=DECODE, **LLAMA_3_70B)
    yield row("Llama-3-70B prefill", (0, 50), (0, 17), **LLAMA_3_70B)
    yield row("Llama-3-70B chunked prefill", (300, 40), (0, 9), page_size=64, **LLAMA_3_70B)
    yield row("Llama-3-70B draft extend", *DRAFTS, mode=DRAFT, page_size=64, **LLAMA_3_70B)
    yield row("Llama-3-70B verify", *CHAIN, mode=VERIFY, page_size=1, **LLAMA_3_70B)
    yield row("Llama-3-8B over 8 ranks: one kv head each", *CHUNKED, heads=(4, 1), head_dim=128)
    yield row("Llama-3-70B over 8 ranks: decode", *DECODE_BATCH, mode=DECODE, heads=(8, 1), head_dim=128)
    yield row("Qwen3-8B shared prefix", *SHARED_PREFIX, seed=1, **QWEN3_8B)
    yield row("Qwen3-8B draft extend, page size 1", *DRAFTS, mode=DRAFT, page_size=1, seed=1, **QWEN3_8B)
    yield row("Qwen3-0.6B decode", *DECODE_BATCH, mode=DECODE, **QWEN3_06B)
    yield row("Qwen3-0.6B prefill", *PREFILL, **QWEN3_06B)
    yield row("Qwen3-30B-A3B decode", *DECODE_BATCH, mode=DECODE, **QWEN3_30B_A3B)
    yield row("Qwen3-30B-A3B chunked prefill", *CHUNKED, page_size=64, **QWEN3_30B_A3B)
    yield row("Qwen3-30B-A3B draft extend", *DRAFTS, mode=DRAFT, **QWEN3_30B_A3B)
    yield row("Qwen2-7B decode (group 7)", *DECODE_BATCH, mode=DECODE, **QWEN2_7B)
    yield row("Qwen2-7B prefill (group 7)", *PREFILL, **QWEN2_7B)
    yield row("Qwen2-7B shared prefix (group 7)", *SHARED_PREFIX, **QWEN2_7B)


def _sliding_window() -> Iterator[Row]:
    yield row("Mistral-7B decode, inside the window", *DECODE_SHORT, mode=DECODE, **MISTRAL_7B)
    yield row("Mistral-7B decode, beyond the window", (4200, 1), (5, 1), mode=DECODE, **MISTRAL_7B)
    yield row("Mistral-7B chunk that slides past the window", (4090, 12), **MISTRAL_7B)
    yield row("Mistral-7B prefill", *PREFILL, **MISTRAL_7B)
    yield row("Mistral-7B draft extend", *DRAFTS, mode=DRAFT, **MISTRAL_7B)
    yield row("Mistral-7B over 8 ranks: chunk past the window", (5000, 40), (4095, 3), **MISTRAL_7B | {"heads": (4, 1)})
    yield row("Gemma-3-1B local decode", *DECODE_BATCH, mode=DECODE, **GEMMA_3_1B_LOCAL)
    yield row("Gemma-3-1B local prefill past the window", (0, 600), **GEMMA_3_1B_LOCAL)
    yield row("Gemma-3-1B local chunked", (700, 64), (500, 20), (0, 3), **GEMMA_3_1B_LOCAL)
    yield row("Gemma-3-1B local draft extend", (511, 4), (600, 4), (5, 4), mode=DRAFT, **GEMMA_3_1B_LOCAL)
    yield row("Gemma-3-4B local decode", *_decode(1022, 1023, 1024, 40), mode=DECODE, **GEMMA_3_4B_LOCAL)
    yield row("Gemma-3-4B local chunked", (1100, 40), (9, 5), **GEMMA_3_4B_LOCAL)
    yield row("Gemma-3-27B local decode", *_decode(1200, 64, 9), mode=DECODE, **GEMMA_3_27B_LOCAL)
    yield row("Gemma-3-27B local chunked", (1010, 30), **GEMMA_3_27B_LOCAL)
    yield row("Gemma-3-27B global prefill", *PREFILL, **GEMMA_3_27B_GLOBAL)
    yield row("Gemma-3-27B global draft extend", *DRAFTS, mode=DRAFT, **GEMMA_3_27B_GLOBAL)
    yield row("Gemma-3-27B local verify", (1022, 5), (100, 5), mode=VERIFY, **GEMMA_3_27B_LOCAL)


def _softcap() -> Iterator[Row]:
    yield row("Gemma-2-2B global decode", *_decode(300, 64, 5, 129), mode=DECODE, **GEMMA_2_2B_GLOBAL)
    yield row("Gemma-2-2B global prefill, spiky", *PREFILL, recipe="spiky", **GEMMA_2_2B_GLOBAL)
    yield row("Gemma-2-2B local decode, beyond the window", (4200, 1), (70, 1), mode=DECODE, **GEMMA_2_2B_LOCAL)
    yield row("Gemma-2-2B local chunk past the window", (4090, 20), **GEMMA_2_2B_LOCAL)
    yield row("Gemma-2-2B local draft extend, spiky", *DRAFTS, mode=DRAFT, recipe="spiky", **GEMMA_2_2B_LOCAL)
    yield row("Gemma-2-9B local prefill, spiky", *PREFILL, recipe="spiky", **GEMMA_2_9B_LOCAL)
    yield row("Gemma-2-9B local shared prefix", *SHARED_PREFIX, **GEMMA_2_9B_LOCAL)


def _sinks_and_odd_dims() -> Iterator[Row]:
    yield row("gpt-oss local decode", *DECODE_BATCH, mode=DECODE, **GPT_OSS_LOCAL)
    yield row("gpt-oss local prefill past the window", (0, 200), **GPT_OSS_LOCAL)
    yield row("gpt-oss local chunked", *CHUNKED, **GPT_OSS_LOCAL)
    yield row("gpt-oss local draft extend", *DRAFTS, mode=DRAFT, **GPT_OSS_LOCAL)
    yield row("gpt-oss global decode", *DECODE_BATCH, mode=DECODE, **GPT_OSS_GLOBAL)
    yield row("gpt-oss global chunked", (300, 40), (0, 30), **GPT_OSS_GLOBAL)
    yield row("Phi-3-mini decode", *DECODE_SHORT, mode=DECODE, **PHI_3_MINI)
    yield row("Phi-3-mini prefill", *PREFILL, **PHI_3_MINI)
    yield row("Phi-3-mini over 8 ranks: past the window", (2040, 30), (100, 3), **PHI_3_MINI | {"heads": (4, 4)})
    yield row("Phi-3-mini draft extend", *DRAFTS, mode=DRAFT, **PHI_3_MINI)


def rows() -> tuple[Row, ...]:
    return (*_full_attention(), *_sliding_window(), *_softcap(), *_sinks_and_odd_dims())


def large_rows() -> tuple[Row, ...]:
    """The same models at GPU sizes: tens of seconds each for the reference on a CPU."""
    many = _decode(*(37 * i % 2000 + 1 for i in range(48)))
    return (
        row("Llama-3-8B prefill, 2k", (0, 2048), (0, 777), **LLAMA_3_8B),
        row("Llama-3-8B decode, 48 requests", *many, mode=DECODE, **LLAMA_3_8B),
        row("Llama-3-8B chunk of 512 on 8k", (8192, 512), (3000, 1), page_size=64, **LLAMA_3_8B),
        row("Llama-3-70B chunk of 512 on 4k", (4096, 512), (0, 100), **LLAMA_3_70B),
        row("Llama-3-70B verify, 32 requests", *((p, 5) for p, _ in many[:32]), mode=VERIFY, **LLAMA_3_70B),
        row("Mistral-7B prefill past the window", (0, 5000), **MISTRAL_7B),
        row("Mistral-7B chunks past the window", (8192, 512), (4000, 300), (0, 64), **MISTRAL_7B),
        row("Mistral-7B draft extend, 32 requests", *((3 * p, 4) for p, _ in many[:32]), mode=DRAFT, **MISTRAL_7B),
        row("Qwen3-30B-A3B decode, 48 requests", *many, mode=DECODE, page_size=1, **QWEN3_30B_A3B),
        row("Qwen2-7B prefill, 2k (group 7)", (0, 2048), **QWEN2_7B),
        row("Gemma-2-27B local chunk past the window", (4090, 300), (50, 9), **GEMMA_2_27B_LOCAL),
        row("Gemma-2-27B local decode, spiky", *many[:16], mode=DECODE, recipe="spiky", **GEMMA_2_27B_LOCAL),
        row("Gemma-3-4B global prefill, 2k", (0, 2048), **GEMMA_3_4B_GLOBAL),
        row("Gemma-3-27B local prefill past the window", (0, 3000), **GEMMA_3_27B_LOCAL),
        row("Gemma-3-27B local draft extend", *((2 * p, 4) for p, _ in many[:24]), mode=DRAFT, **GEMMA_3_27B_LOCAL),
        row("gpt-oss local prefill, 2k", (0, 2048), (0, 100), **GPT_OSS_LOCAL),
        row("gpt-oss local chunks", (8192, 512), (100, 300), **GPT_OSS_LOCAL),
        row("gpt-oss global decode, 48 requests", *many, mode=DECODE, **GPT_OSS_GLOBAL),
        row("Phi-3-mini prefill past the window", (0, 3000), **PHI_3_MINI),
    )
