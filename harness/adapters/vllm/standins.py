"""Stand-ins for what vLLM imports and attention never calls; `doctor` lists those in use.

Beyond packages that are missing: `vllm._C` and `vllm._C_stable_libtorch`, vLLM's own kernels, where the tree
has no compiled ones. None computes attention. The one replacement that does something is declared: the cache
write `reshape_and_cache_flash` becomes a plain indexed store (runtime.py) where vLLM's kernel is not there.
"""

from __future__ import annotations

import sys

from harness.adapters.sglang.standins import Finder, StandIn, is_real

STAND_INS = {
    "cbor2": "hashing of configurations",
    "openai_harmony": "chat formats",
    "uvloop": "the server's event loop",
    "cpuinfo": "usage statistics",
}
COMPILED = ("vllm._C", "vllm._C_stable_libtorch")


def missing() -> tuple[str, ...]:
    """The packages of STAND_INS that are not installed, so that a stand-in is used (or would be)."""
    return tuple(name for name in STAND_INS if not is_real(name))


def install(compiled: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Put stand-ins where packages are missing, and for `compiled` submodules of vllm; returns their names."""
    names = missing()
    sys.meta_path.append(Finder(frozenset(names)))
    for name in compiled:
        sys.modules[name] = StandIn(name)
    return (*names, *compiled)
