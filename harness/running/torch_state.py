"""Torch's default device and dtype, kept apart: the adapter's hold while it is at work, the harness's otherwise.

An adapter may need its own (torch.set_default_device in `prepare`, say, for what `run` allocates); data drawn or judged
under them would be on another device, or of another precision, than the harness believes.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

Defaults = tuple[torch.device, torch.dtype]


class _OfThread(threading.local):  # as torch keeps the default device
    inside: bool = False
    theirs: Defaults | None = None


_state = _OfThread()


@contextmanager
def adapters_defaults() -> Iterator[None]:
    """The defaults that the adapter left the last time, while the body runs; then those from before."""
    if _state.inside:
        yield
        return
    ours = _held()
    if _state.theirs is not None and _state.theirs != ours:
        _hold(_state.theirs)
    _state.inside = True
    try:
        yield
    finally:
        _state.inside = False
        _state.theirs = _held()
        if _state.theirs != ours:
            _hold(ours)


def _held() -> Defaults:
    return torch.get_default_device(), torch.get_default_dtype()


def _hold(wanted: Defaults) -> None:
    device, dtype = wanted
    torch.set_default_device(None if device.type == "cpu" else device)  # None: as if it had never been set
    torch.set_default_dtype(dtype)
