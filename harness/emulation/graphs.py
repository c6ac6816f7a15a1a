"""An emulated CUDA graph: what is frozen at capture, and what replay reads anew.

A captured function closes over host integers (grid sizes, maxima) and over tensors. Replaying it
calls it again: the integers are those of the capture, the tensors have whatever they hold by then,
and the results are copied over the tensors that the capture returned, at their old addresses.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor


class EmulatedGraph:
    """Captures `function` by running it once; `outputs` are the tensors it returned then."""

    def __init__(self, function: Callable[[], tuple[Tensor, Tensor]]) -> None:
        self._function = function
        self.outputs = function()

    def replay(self) -> None:
        for address, value in zip(self.outputs, self._function(), strict=True):
            if value.data_ptr() != address.data_ptr():
                address.copy_(value)
