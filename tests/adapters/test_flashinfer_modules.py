"""FlashInfer without JIT: what no module was built for is UNSUPPORTED, and is not drawn."""

from __future__ import annotations

from pathlib import Path

from cases.schema import AttentionCase
from harness.adapters.flashinfer import FlashInferPagedFa3, FlashInferSwaMerge
from harness.adapters.flashinfer_modules import module_name, prebuilt_modules
from harness.emulation.flashinfer import EmulatedFlashInfer
from harness.fuzzing.limits import Declaration, draw_limits, mend


def library(*modules: tuple[str, int, bool, bool], backend: str = "fa2") -> EmulatedFlashInfer:
    made = EmulatedFlashInfer()
    made.prebuilt = frozenset(module_name(*module, backend) for module in modules)
    return made


def case(**fields: object) -> AttentionCase:
    return AttentionCase(requests=((5, 3),), num_qo_heads=2, num_kv_heads=1, **fields)


def test_only_what_has_modules_is_taken() -> None:
    built = [("bfloat16", 64, window, cap) for window in (False, True) for cap in (False, True)]
    adapter = FlashInferSwaMerge(library(*built, ("bfloat16", 128, False, False), ("float16", 256, True, False)))
    takes = adapter.capabilities.unsupported
    assert (adapter.capabilities.dtypes, adapter.capabilities.head_dims) == (("bfloat16",), (64, 128))
    assert takes(case(window_left=4, logits_soft_cap=2.0)) is None
    wide = case(window_left=4, head_dim_qk=128, head_dim_vo=128)
    missing = module_name("bfloat16", 128, True, False, "fa2")
    assert takes(wide) == f"JIT is disabled and {missing} is not prebuilt"
    mended = mend(wide, adapter.capabilities)
    assert mended is not None
    assert mended.window_left is None  # as little as makes it supported
    limits = draw_limits(Declaration.of(adapter))
    assert (limits.dtypes, limits.head_dims) == (("bfloat16",), (64, 128))


def test_the_prefix_leg_of_the_merge_needs_the_module_without_a_window() -> None:
    windowed = ("bfloat16", 64, True, False)
    assert FlashInferSwaMerge(library(windowed)).capabilities.unsupported(case(window_left=4)) is not None
    paged = FlashInferPagedFa3(library(windowed, backend="fa3"))
    assert paged.capabilities.unsupported(case(window_left=4)) is None
    assert paged.capabilities.unsupported(case()) is not None


def test_a_dtype_without_modules_is_mended_to_one_that_has_them() -> None:
    half = [("float16", 64, window, False) for window in (False, True)]
    adapter = FlashInferSwaMerge(library(("bfloat16", 256, False, False), *half))
    mended = mend(case(dtype="float16", kv_dtype="float16", head_dim_qk=256, head_dim_vo=256), adapter.capabilities)
    assert mended is not None
    assert (mended.dtype, mended.head_dim_qk) == ("bfloat16", 256)


def test_with_jit_everything_declared_is_taken() -> None:
    assert FlashInferSwaMerge(EmulatedFlashInfer()).capabilities is FlashInferSwaMerge.capabilities


def test_modules_are_read_from_their_folder(tmp_path: Path) -> None:
    for name, file in (("one", "one.so"), ("two", "other.so"), ("three", "three.txt")):
        (tmp_path / name).mkdir()
        (tmp_path / name / file).touch()
    assert prebuilt_modules(tmp_path) == {"one"}
