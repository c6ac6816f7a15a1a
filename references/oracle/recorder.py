"""Record what a transformers model computes at each attention call.

A probe is registered under one name in both of transformers' registries: in the attention registry a
function that calls the model's own `eager_attention_forward` and keeps its inputs and output, in the
mask registry transformers' own `eager_mask`. With the first alone the mask would be None, and every
layer would silently be unmasked; so a call whose mask is missing is an error here.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from references.oracle.internals import Internals, OracleError, cache_parameter, moved

PROBE = "attn_harness_probe"


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """One attention call of one layer, after RoPE and after the cache update.

    q [batch, num_qo_heads, E, head_dim]; k, v [batch, num_kv_heads, n, head_dim], the cached tail and
    the new rows; mask [batch or 1, 1, E, n] additive; out [batch, E, num_qo_heads, head_dim].
    """

    layer: int
    q: Tensor
    k: Tensor
    v: Tensor
    mask: Tensor
    out: Tensor
    scaling: float
    softcap: float | None
    sliding_window: int | None
    sinks: Tensor | None


class RecordedModel:
    """A model whose attention calls are recorded, fed in chunks through its own cache."""

    def __init__(self, model: Any, internals: Internals) -> None:
        self.model = model
        self._internals = internals
        self._cache_parameter = cache_parameter(type(model).forward)
        self._calls: list[AttentionCall] = []
        eager = getattr(sys.modules[type(model).__module__], "eager_attention_forward", None)
        if eager is None:
            raise moved(f"{type(model).__module__}.eager_attention_forward")
        self._eager = eager

    def new_cache(self) -> Any:
        return self._internals.dynamic_cache(config=self.model.config)

    def feed(self, ids: Tensor, cache: Any) -> list[AttentionCall]:
        """Run `ids` [batch, E] after what `cache` holds; the calls of this step, layer after layer."""
        self._calls = []
        self._internals.attention_functions.register(PROBE, self._probe)
        self._internals.mask_functions.register(PROBE, self._internals.eager_mask)
        self.model.config._attn_implementation = PROBE
        with torch.no_grad():
            self.model(input_ids=ids, use_cache=True, **{self._cache_parameter: cache})
        layers = [call.layer for call in self._calls]
        expected = list(range(self.model.config.num_hidden_layers))
        if layers != expected:
            raise moved(
                f"attention dispatch through ALL_ATTENTION_FUNCTIONS in {type(self.model).__name__} "
                f"(layers {layers} were recorded, {expected} exist)"
            )
        return self._calls

    def _probe(
        self, module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
    ) -> Any:
        name = type(self.model).__name__
        if attention_mask is None:
            raise OracleError(
                f"{name} of transformers {self._internals.version} called its attention without a mask, so nothing "
                "would be masked; the mask registry ALL_MASK_ATTENTION_FUNCTIONS is no longer what it reads."
            )
        if options.get("scaling") is None:
            raise moved(f"the keyword 'scaling' in the attention call of {name}")
        result = self._eager(module, query, key, value, attention_mask, **options)
        sinks = getattr(module, "sinks", None)
        if (sinks is None) != (options.get("s_aux") is None):
            raise moved(f"the keyword 's_aux' for the sinks in the attention call of {name}")
        self._calls.append(
            AttentionCall(
                layer=module.layer_idx,
                q=query,
                k=key,
                v=value,
                mask=attention_mask,
                out=result[0],
                scaling=options["scaling"],
                softcap=options.get("softcap"),
                sliding_window=options.get("sliding_window"),
                sinks=None if sinks is None else sinks.detach().float(),
            )
        )
        return result


def random_ids(vocabulary: int, batch: int, length: int, seed: int) -> Tensor:
    """int64 [batch, length] of token ids."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(vocabulary, (batch, length), generator=generator)
