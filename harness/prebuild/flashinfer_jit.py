"""FlashInfer's own JIT, behind the few calls that prebuilding needs. Read at 0.6.18 (flashinfer/jit)."""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from harness.errors import UsageError
from harness.prebuild.recording import Module, PrefillModule
from harness.prebuild.toolchain import let_link, require_compilers

POLL = 0.5  # seconds between looks at what is finished


class State(StrEnum):
    """AOT is taken as it is; CACHED is what the JIT built before, which it checks with ninja at each load."""

    AOT = "ahead of time"
    CACHED = "cached"
    MISSING = "missing"
    BUILT = "built"
    FAILED = "failed"


@dataclass(slots=True)
class Prebuilt:
    """One module: where its library is, and what became of it."""

    name: str
    state: State
    library: Path
    seconds: float | None = None
    error: str = ""


class FlashInferJit:
    """flashinfer.jit of this environment, for the GPUs that FLASHINFER_CUDA_ARCH_LIST names (or those here)."""

    def __init__(self) -> None:
        try:
            self._core = importlib.import_module("flashinfer.jit.core")
            self._env = importlib.import_module("flashinfer.jit.env")
            self._cpp = importlib.import_module("flashinfer.jit.cpp_ext")
            self._generators = {
                "prefill": importlib.import_module("flashinfer.jit.attention.modules").gen_batch_prefill_module,
                "cascade": importlib.import_module("flashinfer.jit.cascade").gen_cascade_module,
                "page": importlib.import_module("flashinfer.jit.page").gen_page_module,
                "quantization": importlib.import_module("flashinfer.jit.quantization").gen_quantization_module,
            }
        except Exception as problem:  # a library that fails at import, for whatever reason, is not to be had here
            raise UsageError(f"flashinfer's JIT cannot be imported ({type(problem).__name__}: {problem}).") from problem

    @property
    def aot_folder(self) -> Path:
        """Where the library looks first: AOT/NAME/NAME.so."""
        return Path(self._env.FLASHINFER_AOT_DIR)

    @property
    def cache_folder(self) -> Path:
        return Path(self._env.FLASHINFER_JIT_DIR)

    def _spec(self, module: Module) -> Any:
        """The library's JitSpec; writes the generated sources, compiles nothing."""
        if isinstance(module, PrefillModule):
            return self._generators["prefill"](
                module.backend,
                module.dtype_q,
                module.dtype_kv,
                module.dtype_o,
                module.dtype_idx,
                module.head_dim_qk,
                module.head_dim_vo,
                0,  # PosEncodingMode.NONE
                module.use_sliding_window,
                module.use_logits_soft_cap,
                False,  # use_fp16_qk_reduction
            )
        return self._generators[module.name]()

    def look(self, modules: Sequence[Module]) -> list[tuple[Prebuilt, Any]]:
        """What is there of `modules`, with the library's spec of each."""
        found = []
        for module in modules:
            spec = self._spec(module)
            state = State.AOT if spec.is_aot else State.CACHED if spec.is_compiled else State.MISSING
            found.append((Prebuilt(spec.name, state, Path(spec.get_library_path())), spec))
        return found

    def build(
        self, found: Sequence[tuple[Prebuilt, Any]], jobs: int, on_done: Callable[[Prebuilt], None] = lambda _one: None
    ) -> None:
        """Build what is MISSING with `jobs` compilers at once, and let ninja check what is CACHED.

        Sets `state`, `seconds` and `error`. Raises UsageError where something is missing and cannot be built here.
        """
        missing = [one for one, _ in found if one.state is State.MISSING]
        if not missing:
            return
        try:
            cuda_home = str(self._cpp.get_cuda_path())
        except RuntimeError:  # it looked in CUDA_HOME, CUDA_PATH, PATH and /usr/local/cuda
            cuda_home = "/usr/local/cuda"
        require_compilers(cuda_home, len(missing))
        let_link(cuda_home, self.cache_folder.parent / "link-stubs")
        os.environ["MAX_JOBS"] = str(jobs)
        specs = [spec for one, spec in found if one.state is not State.AOT]
        os.environ.pop("FLASHINFER_DISABLE_JIT", None)  # it is for runs
        self._together(specs, missing, on_done)
        for one, spec in found:
            # One bad module stops ninja for all: what it left is built one by one, which tells the bad one.
            if any(one is other for other in missing) and not one.library.exists():
                self._alone(one, spec)
                on_done(one)

    def _together(self, specs: list[Any], missing: list[Prebuilt], on_done: Callable[[Prebuilt], None]) -> None:
        """All of `specs` in one ninja, in a thread; tells each library of `missing` as it appears."""

        def build() -> None:
            with contextlib.suppress(RuntimeError):  # which module it was is found out one by one
                self._core.build_jit_specs(specs, verbose=False)

        thread = threading.Thread(target=build, daemon=True)
        start = time.monotonic()
        thread.start()
        waiting = list(missing)
        ended = False
        while waiting and not ended:
            thread.join(POLL)
            ended = not thread.is_alive()  # asked before the look, so that the last look sees everything
            for one in [one for one in waiting if one.library.exists()]:
                waiting.remove(one)
                one.state, one.seconds = State.BUILT, time.monotonic() - start
                on_done(one)
        thread.join()

    def _alone(self, one: Prebuilt, spec: Any) -> None:
        start = time.monotonic()
        try:
            spec.build(verbose=False)
            one.state = State.BUILT
        except RuntimeError as problem:
            one.state, one.error = State.FAILED, _first_error(str(problem))
        one.seconds = time.monotonic() - start


def _first_error(text: str) -> str:
    """The compiler's first error, or its last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"\berror\b", line, re.IGNORECASE)]
    return (errors or lines[-1:] or ["no message"])[0][:300]
