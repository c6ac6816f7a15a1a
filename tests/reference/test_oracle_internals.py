"""A transformers release that moved something ends in one sentence that names it."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
import torch

transformers = pytest.importorskip("transformers", reason="not run: needs transformers")

from references.oracle import OracleError, compare_masks, run_oracle  # noqa: E402
from references.oracle.internals import cache_parameter  # noqa: E402


def sentence(model: str = "mistral") -> str:
    with pytest.raises(OracleError) as caught:
        list(run_oracle([model], (4,), ("float32",)))
    text = str(caught.value)
    assert "\n" not in text
    assert transformers.__version__ in text
    return text


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("transformers.modeling_utils", "ALL_ATTENTION_FUNCTIONS"),
        ("transformers.masking_utils", "ALL_MASK_ATTENTION_FUNCTIONS"),
        ("transformers.masking_utils", "eager_mask"),
        ("transformers.masking_utils", "causal_mask_function"),
        ("transformers.masking_utils", "sliding_window_causal_mask_function"),
        ("transformers.cache_utils", "DynamicCache"),
        ("transformers.cache_utils", "DynamicSlidingWindowLayer"),
        ("transformers.models.mistral.modeling_mistral", "eager_attention_forward"),
    ],
)
def test_a_moved_name_is_named(monkeypatch: pytest.MonkeyPatch, module: str, name: str) -> None:
    __import__(module)
    monkeypatch.delattr(sys.modules[module], name)
    assert f"lacks {module}.{name}, which the oracle needs" in sentence()


def test_a_changed_signature_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformers.cache_utils, "DynamicCache", lambda: None)
    assert "lacks the parameter 'config' of DynamicCache" in sentence()


def test_a_mask_registry_that_nobody_reads_is_not_a_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    """The classic silent failure: the attention is recorded, its mask is None, and everything is unmasked."""
    from transformers.models.mistral import modeling_mistral

    monkeypatch.setattr(modeling_mistral, "create_sliding_window_causal_mask", lambda **_: None)
    assert "called its attention without a mask" in sentence()


def test_attention_that_bypasses_the_registry_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.models.mistral import modeling_mistral

    deaf = SimpleNamespace(get_interface=lambda _name, default: default)
    monkeypatch.setattr(modeling_mistral, "ALL_ATTENTION_FUNCTIONS", deaf)
    assert "attention dispatch through ALL_ATTENTION_FUNCTIONS in MistralModel" in sentence()


def test_a_cache_that_keeps_other_tokens_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = transformers.cache_utils.DynamicSlidingWindowLayer
    right = layer.update

    def first_tokens(self, keys, values, *rest, **more):  # type: ignore[no-untyped-def]
        full = right(self, keys, values, *rest, **more)
        self.keys, self.values = (t[:, :, : self.sliding_window - 1].clone() for t in full)
        return full

    monkeypatch.setattr(layer, "update", first_tokens)
    with pytest.raises(OracleError, match="the cached ones are not the last of the sequence"):
        list(run_oracle(["mistral"], (4,), ("float32",)))


def test_sinks_that_moved_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.models.gpt_oss import modeling_gpt_oss

    right = modeling_gpt_oss.GptOssModel.named_parameters
    monkeypatch.setattr(
        modeling_gpt_oss.GptOssModel,
        "named_parameters",
        lambda self, *a, **k: ((name.replace("sinks", "s_aux"), p) for name, p in right(self, *a, **k)),
    )
    with pytest.raises(OracleError, match="has 0 parameters named 'sinks' in 2 layers"):
        list(run_oracle(["gpt-oss"], (4,), ("float32",)))


def test_a_model_class_that_is_gone_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from references.oracle import models

    gone = models.ModelSpec("gone", "NoSuchModel", "LlamaConfig", {}, ("full", "full"), window=None)
    monkeypatch.setitem(models.MODELS, "gone", gone)
    assert "lacks transformers.NoSuchModel" in sentence("gone")


def test_both_names_of_the_cache_parameter_are_known() -> None:
    def new(input_ids, cache): ...  # type: ignore[no-untyped-def]

    def old(input_ids, past_key_values): ...  # type: ignore[no-untyped-def]

    def neither(input_ids): ...  # type: ignore[no-untyped-def]

    assert (cache_parameter(new), cache_parameter(old)) == ("cache", "past_key_values")
    with pytest.raises(OracleError, match="cache parameter"):
        cache_parameter(neither)


def test_without_transformers_the_sentence_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    for call in (lambda: list(run_oracle(["llama"], (4,))), lambda: compare_masks(4)):
        with pytest.raises(OracleError, match=r"with: pip install -e '\.\[test\]'") as caught:
            call()
        assert "\n" not in str(caught.value)


def test_the_callers_random_state_and_threads_are_left_alone() -> None:
    torch.manual_seed(7)
    expected = torch.get_rng_state()
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        list(run_oracle(["llama"], (2,), ("float32",)))
        assert torch.get_num_threads() == threads + 1
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(torch.get_rng_state(), expected)
