"""FlashAttention 4's kernels, compiled by the library itself from tensors without data, on a GPU or without one.

Read at 4.0.0b36: under torch's FakeTensorMode `_flash_attn_fwd` compiles and launches nothing, and its cache on
disk (flash_attn/cute/cache_utils.py) takes what was compiled if FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED=1.
"""

from __future__ import annotations

import contextlib
import getpass
import multiprocessing
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

import torch

from harness.prebuild.recording import CallLike, TensorLike


@dataclass(frozen=True, slots=True)
class Compiled:
    """What became of one call. `cache`: the folder that its kernel is kept in."""

    index: int
    cache: str = ""
    error: str = ""


def cache_root() -> Path:
    """Where the library keeps kernels on disk, in a folder per fingerprint of its sources."""
    folder = os.environ.get("FLASH_ATTENTION_CUTE_DSL_CACHE_DIR")
    if folder is not None:
        return Path(folder)
    return Path(tempfile.gettempdir()) / getpass.getuser() / "flash_attention_cute_dsl_cache"


def kernels(root: Path) -> set[Path]:
    """The kernels under a cache root: ROOT/FINGERPRINT/PASS/HASH.o."""
    return {path for path in root.glob("*/*/*.o") if not path.name.startswith(".")}


def compile_calls(
    calls: Sequence[CallLike],
    environment: Mapping[str, str],
    jobs: int,
    on_done: Callable[[Compiled], None] = lambda _one: None,
) -> list[Compiled]:
    """Compile what `calls` need in `jobs` processes with `environment` (see targets.py). In the order of `calls`.

    Raises UsageError where the library cannot be loaded.
    """
    results: list[Compiled] = []
    with (
        _environment(environment),
        ProcessPoolExecutor(
            max_workers=max(1, min(jobs, len(calls))),
            mp_context=multiprocessing.get_context("spawn"),  # the library keeps state that a fork would share
            initializer=_quiet,
        ) as pool,
    ):
        for future in as_completed([pool.submit(compile_one, index, call) for index, call in enumerate(calls)]):
            results.append(future.result())
            on_done(results[-1])
    return sorted(results, key=lambda one: one.index)


@contextlib.contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(values)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _quiet() -> None:
    """In a compiling process: what the library prints goes to standard error; one thread; no warnings."""
    os.dup2(2, 1)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)


def compile_one(index: int, call: CallLike) -> Compiled:
    """Have the library compile one call in this process. Raises UsageError if there is no usable library."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    from harness.adapters.flash_attention_library import load_flash_attention_4

    def make(like: TensorLike) -> torch.Tensor:
        return torch.empty_strided(like.shape, like.stride, dtype=like.dtype, device="cuda")

    library = load_flash_attention_4()
    try:
        with FakeTensorMode():
            library.varlen(call.made(make))
        cache = library._module._flash_attn_fwd.compile_cache
        return Compiled(index, cache=str(getattr(cache, "cache_path", "")))
    except Exception as problem:  # whatever the library says of this call is told with it
        lines = str(problem).strip().splitlines() or [""]
        return Compiled(index, error=f"{type(problem).__name__}: {lines[0][:300]}".rstrip(": "))
