"""Tiny random models of transformers' own classes: what each has that the others have not.

Sizes are chosen so that errors show: projections are drawn so that q and k have about unit normal
entries and the scores spread over a few units, the softcap is within reach of them, and the sinks are
drawn around 1. transformers' default initialisation would give scores near 0, under which any wrong
scale, cap or sink hides.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from references.oracle.internals import OracleError, lookup

HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}
HEAD_DIM = 16
VOCABULARY = 97
_SIZES: dict[str, Any] = {
    **HEADS,
    "hidden_size": 64,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "vocab_size": VOCABULARY,
    "initializer_range": 0.125,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
_MIXED = {"layer_types": ["sliding_attention", "full_attention"]}


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """One architecture: the class names in transformers and what its tiny config sets.

    kinds: the layer kind of each of the two layers. `window` is how the config names its window,
    None where the architecture has none.
    """

    name: str
    model_class: str
    config_class: str
    extra: Mapping[str, Any]
    kinds: tuple[str, str]
    window: str | None = "sliding_window"

    @property
    def has_window(self) -> bool:
        return self.window is not None


MODELS: dict[str, ModelSpec] = {
    spec.name: spec
    for spec in (
        ModelSpec("llama", "LlamaModel", "LlamaConfig", {"head_dim": HEAD_DIM}, ("full", "full"), window=None),
        ModelSpec("mistral", "MistralModel", "MistralConfig", {"head_dim": HEAD_DIM}, ("sliding", "sliding")),
        ModelSpec("phi3", "Phi3Model", "Phi3Config", {}, ("sliding", "sliding")),
        ModelSpec(
            "qwen3",
            "Qwen3Model",
            "Qwen3Config",
            {"head_dim": HEAD_DIM, "use_sliding_window": True, **_MIXED},
            ("sliding", "full"),
        ),
        ModelSpec(
            "gemma2",
            "Gemma2Model",
            "Gemma2Config",
            {"head_dim": HEAD_DIM, "query_pre_attn_scalar": 12, "attn_logit_softcapping": 2.0, **_MIXED},
            ("sliding", "full"),
        ),
        ModelSpec(
            "gemma3",
            "Gemma3TextModel",
            "Gemma3TextConfig",
            {"head_dim": HEAD_DIM, "query_pre_attn_scalar": 12, **_MIXED},
            ("sliding", "full"),
        ),
        ModelSpec(
            "gpt-oss",
            "GptOssModel",
            "GptOssConfig",
            {
                "head_dim": HEAD_DIM,
                "num_local_experts": 2,
                "num_experts_per_tok": 1,
                "initializer_range": 0.1,
                **_MIXED,
            },
            ("sliding", "full"),
        ),
    )
}


def build_model(spec: ModelSpec, window: int, dtype: torch.dtype) -> Any:
    """A random model of `spec` with sliding_window `window`, in eval mode on the CPU.

    Every architecture has its own weights, the same at every window. The caller's random state is left as
    it was.
    """
    config_class = lookup("transformers", spec.config_class)
    model_class = lookup("transformers", spec.model_class)
    options = {**_SIZES, **spec.extra}
    if spec.window is not None:
        options[spec.window] = window
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(zlib.crc32(spec.name.encode()))
        config = config_class(**options)
        model = model_class(config)
        _randomise_sinks(spec, model)
    return model.to(dtype).eval()


def _randomise_sinks(spec: ModelSpec, model: Any) -> None:
    if spec.name != "gpt-oss":
        return
    parameters = [p for name, p in model.named_parameters() if name.endswith("sinks")]
    if len(parameters) != len(spec.kinds):
        raise OracleError(
            f"transformers' GptOssModel has {len(parameters)} parameters named 'sinks' in {len(spec.kinds)} layers; "
            "the oracle expects one each, so teach references/oracle/models.py where they are."
        )
    for parameter in parameters:
        torch.nn.init.normal_(parameter.data, mean=1.0, std=1.0)
