"""SGLang on a machine without a GPU: what it asks of CUDA is answered as an H200 would, on CPU tensors.

Inside `pretend_cuda()` the questions about the device have the H200's answers and `device="cuda"` means
the CPU. Outside it nothing is changed, so other adapters of the process are not misled. Kernels never
run on this: FlashInfer and FlashAttention are emulated, SGLang's Triton kernels run in Triton's
interpreter, torch's operators on the CPU.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

H200 = SimpleNamespace(
    major=9, minor=0, multi_processor_count=132, total_memory=141 << 30, name="NVIDIA H200", warp_size=32
)

ANSWERS: dict[str, Any] = {
    "is_available": lambda: True,
    "get_device_capability": lambda *_, **__: (9, 0),
    "get_device_name": lambda *_, **__: H200.name,
    "get_device_properties": lambda *_, **__: H200,
    "device_count": lambda: 1,
    "current_device": lambda: 0,
    "synchronize": lambda *_, **__: None,
    "empty_cache": lambda: None,
    "get_arch_list": lambda: ["sm_90"],
}


def use_triton_interpreter() -> None:
    """Ask for Triton's interpreter. Raises RuntimeError if Triton was imported without it: it is too late then."""
    if "triton" in sys.modules and os.environ.get("TRITON_INTERPRET") != "1":
        raise RuntimeError("triton was imported before TRITON_INTERPRET=1 was set; set it in the environment")
    os.environ["TRITON_INTERPRET"] = "1"


class _CpuForCuda(TorchFunctionMode):
    """`device="cuda"` in a factory function, `.to("cuda")` and `.cuda()` mean the CPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        kwargs = {} if kwargs is None else kwargs
        if "device" in kwargs:
            kwargs = {**kwargs, "device": _plain(kwargs["device"])}
        if func is torch.Tensor.cuda:
            return args[0]
        if func is torch.Tensor.to:
            args = (args[0], *map(_plain, args[1:]))
        kwargs.pop("pin_memory", None)
        return func(*args, **kwargs)


def _plain(value: Any) -> Any:
    if isinstance(value, (str, torch.device)) and str(value).startswith("cuda"):
        return "cpu"
    return value


@contextmanager
def pretend_cuda() -> Iterator[None]:
    """Answer for an H200 while the block runs; see the module's text."""
    kept = {name: getattr(torch.cuda, name) for name in ANSWERS}
    version = torch.version.cuda
    try:
        for name, answer in ANSWERS.items():
            setattr(torch.cuda, name, answer)
        torch.version.cuda = "13.0"
        with _CpuForCuda():
            yield
    finally:
        torch.version.cuda = version
        for name, original in kept.items():
            setattr(torch.cuda, name, original)
