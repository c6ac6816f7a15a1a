"""What outside files define, loaded first in a process of its own: a file may crash, exit or hang while it is imported.

A command that loaded it itself would end as the file says, `os._exit(0)` among the rest, which means "all right".
"""

from __future__ import annotations

from collections.abc import Callable

from harness.adapter_check import refuse_incomplete
from harness.adapters.registry import load_adapter
from harness.cli.apart import AdapterDied, Answer, answer_apart
from harness.errors import UsageError
from harness.faults.registry import load_fault
from harness.running.pool import START_LIMIT

LOAD_LIMIT = START_LIMIT  # seconds to import a file, and the library that it is about


def adapter_name(spec: str) -> str:
    """The name of the adapter of `path/to/file.py:ClassName`.

    Raises UsageError where it cannot be loaded, does not follow the protocol, or ends the process that loads it.
    """

    def name() -> Answer:
        adapter = load_adapter(spec)
        refuse_incomplete(spec, adapter)
        return Answer(adapter.name, 0)

    return _loaded(spec, name)


def check_fault(spec: str) -> None:
    """Raises UsageError where the fault of `path/to/file.py:Name` cannot be had."""
    _loaded(spec, lambda: Answer(load_fault(spec).name, 0))


def _loaded(spec: str, work: Callable[[], Answer]) -> str:
    try:
        return answer_apart(work, LOAD_LIMIT).text
    except AdapterDied as death:
        raise UsageError(f"{spec} cannot be loaded: {death}.") from None
