"""What the oracle needs from transformers, looked up by name in one place.

The registries, mask functions and caches of transformers are not all public API and have moved
before. A release that lacks one of them ends in one sentence naming it, never in a comparison of
something else.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

TRIED = "5.17 to 5.24"


class OracleError(RuntimeError):
    """The oracle cannot compare with the transformers release installed; the message is one sentence."""


@dataclass(frozen=True, slots=True)
class Internals:
    """transformers' own code, by the names it has there."""

    version: str
    attention_functions: Any
    mask_functions: Any
    eager_mask: Callable[..., Any]
    causal_mask_function: Callable[..., Any]
    sliding_window_causal_mask_function: Callable[[int], Callable[..., Any]]
    create_causal_mask: Callable[..., Any]
    create_sliding_window_causal_mask: Callable[..., Any]
    dynamic_cache: Callable[..., Any]
    sliding_layer: Callable[..., Any]


_WANTED = {
    "attention_functions": ("transformers.modeling_utils", "ALL_ATTENTION_FUNCTIONS"),
    "mask_functions": ("transformers.masking_utils", "ALL_MASK_ATTENTION_FUNCTIONS"),
    "eager_mask": ("transformers.masking_utils", "eager_mask"),
    "causal_mask_function": ("transformers.masking_utils", "causal_mask_function"),
    "sliding_window_causal_mask_function": ("transformers.masking_utils", "sliding_window_causal_mask_function"),
    "create_causal_mask": ("transformers.masking_utils", "create_causal_mask"),
    "create_sliding_window_causal_mask": ("transformers.masking_utils", "create_sliding_window_causal_mask"),
    "dynamic_cache": ("transformers.cache_utils", "DynamicCache"),
    "sliding_layer": ("transformers.cache_utils", "DynamicSlidingWindowLayer"),
}


def load_internals() -> Internals:
    """Import transformers and look everything up. Raises OracleError naming the first thing missing."""
    try:
        version = importlib.import_module("transformers").__version__
    except ImportError as error:
        reason = " ".join(str(error).split())  # transformers words some of these over several lines
        raise OracleError(
            f"transformers cannot be imported ({reason}); install it, or what it misses, with: "
            "pip install -e '.[test]' in the project's checkout."
        ) from None
    found = {field: lookup(module, name) for field, (module, name) in _WANTED.items()}
    require_parameters(found["dynamic_cache"], "DynamicCache", "config")
    require_parameters(found["sliding_layer"], "DynamicSlidingWindowLayer", "sliding_window")
    require_parameters(found["eager_mask"], "eager_mask", "q_offset", "kv_offset", "mask_function")
    return Internals(version=version, **found)


def lookup(module: str, name: str) -> Any:
    """`module.name`, or OracleError."""
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError):
        raise moved(f"{module}.{name}") from None


def require_parameters(function: Callable[..., Any], name: str, *wanted: str) -> None:
    """Raise OracleError unless `function` takes every parameter in `wanted`."""
    have = inspect.signature(function).parameters
    for parameter in wanted:
        if parameter not in have:
            raise moved(f"the parameter {parameter!r} of {name}")


def cache_parameter(forward: Callable[..., Any]) -> str:
    """What a model's forward calls its cache: `cache` since 5.24, `past_key_values` before."""
    have = inspect.signature(forward).parameters
    for name in ("cache", "past_key_values"):
        if name in have:
            return name
    raise moved("the cache parameter ('cache' or 'past_key_values') of a model's forward")


def moved(what: str) -> OracleError:
    """The one sentence for an internal that is not where it was."""
    version = getattr(importlib.import_module("transformers"), "__version__", "unknown")
    return OracleError(
        f"transformers {version} lacks {what}, which the oracle needs; install a release of the range tried "
        f"({TRIED}) or teach references/oracle/ the new place."
    )
