"""Loading a class or a value from a file outside the project: `path/to/file.py:Name`."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

from harness.errors import UsageError


def is_file_spec(spec: str) -> bool:
    """True for `path/to/file.py:Name` (or a .py path that lacks its name, to be refused with a hint)."""
    return ".py:" in spec or spec.endswith(".py")


def load_from_file(spec: str, what: str) -> Any:
    """The object that `spec` names. Raises UsageError with one sentence for whatever goes wrong."""
    path_text, _, name = spec.rpartition(".py:")
    if not path_text or not name:
        raise UsageError(f"{what} {spec!r} names no class; write it as path/to/file.py:ClassName.")
    path = Path(path_text + ".py").expanduser().resolve()
    if not path.is_file():
        raise UsageError(f"{what} file {path} does not exist; check the path before the colon.")
    module_name = f"attn_harness_file_{path.stem}_{abs(hash(str(path))):x}"
    module_spec = importlib.util.spec_from_file_location(module_name, path)
    assert module_spec is not None
    assert module_spec.loader is not None
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[module_name] = module  # dataclasses look their module up
    try:
        module_spec.loader.exec_module(module)
    except (Exception, SystemExit) as problem:
        del sys.modules[module_name]
        raise UsageError(f"{what} file {path} raised {type(problem).__name__} on import: {problem}.") from problem
    if not hasattr(module, name):
        raise UsageError(f"{what} file {path} has no {name!r}; it defines {_public_names(module)}.")
    return getattr(module, name)


def _public_names(module: Any) -> str:
    names = [n for n, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__]
    return ", ".join(names) or "no classes"
