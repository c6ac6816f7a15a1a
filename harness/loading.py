"""Loading a class or a value from a file outside the project: `path/to/file.py:Name`.

While a file is loaded it can import its neighbours. They come after everything else on sys.path, so that a file named
random.py beside it stands in nobody's way.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness.errors import UsageError

_FOLDERS: dict[str, str] = {}  # of modules that were imported as neighbours, by name


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
        with _neighbours_of(path.parent):
            module_spec.loader.exec_module(module)
    except (Exception, SystemExit) as problem:
        del sys.modules[module_name]
        raise UsageError(f"{what} file {path} raised {type(problem).__name__} on import: {problem}.") from problem
    if not hasattr(module, name):
        raise UsageError(f"{what} file {path} has no {name!r}; it defines {_public_names(module)}.")
    return getattr(module, name)


@contextmanager
def _neighbours_of(folder: Path) -> Iterator[None]:
    """Makes the modules of a folder importable. Those of the same names that came from another file's folder are
    forgotten, or two versions of a kernel, each beside its adapter, would be one.
    """
    here = str(folder)
    for name in [n for n, other in _FOLDERS.items() if other != here and _holds_module(folder, n.partition(".")[0])]:
        del _FOLDERS[name]
        sys.modules.pop(name, None)
    before = set(sys.modules)
    added = here not in sys.path
    if added:
        sys.path.append(here)
    try:
        yield
    finally:
        if added and here in sys.path:
            sys.path.remove(here)
        for name in set(sys.modules) - before:
            file = getattr(sys.modules[name], "__file__", None)
            if file and Path(file).resolve().is_relative_to(folder):
                _FOLDERS[name] = here


def _holds_module(folder: Path, name: str) -> bool:
    return (folder / f"{name}.py").exists() or (folder / name).is_dir()


def _public_names(module: Any) -> str:
    names = [n for n, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__]
    return ", ".join(names) or "no classes"
