"""A file of adapters imports the files beside it, and those of nobody else."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from cases import AttentionCase, Request
from harness.adapters.registry import load_adapter
from harness.errors import UsageError
from harness.loading import load_from_file
from harness.record import Record
from harness.running.options import Job, RunOptions
from harness.running.runner import run_jobs
from harness.verdict import Verdict

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "my_kernel.py"
CASE = AttentionCase(requests=(Request(3, 2),))


def folder_with(folder: Path, **files: str) -> Path:
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    return folder


def test_a_neighbour_is_imported_here_and_in_a_worker(tmp_path: Path) -> None:
    shutil.copy(EXAMPLE, tmp_path / "kernel_of_mine.py")
    folder_with(tmp_path, two="from kernel_of_mine import MyKernel\nclass Two(MyKernel):\n    name = 'two'\n")
    spec = f"{tmp_path / 'two.py'}:Two"
    before = list(sys.path)
    assert load_adapter(spec).name == "two"
    assert sys.path == before
    records: list[Record] = []
    run_jobs([Job(CASE, spec)], RunOptions(), records.append, workers=1)
    assert [(record.verdict, record.reason) for record in records] == [(Verdict.PASS, "")]


def test_a_neighbour_stands_in_no_library_s_way(tmp_path: Path) -> None:
    folder_with(
        tmp_path,
        colorsys="raise RuntimeError('this is not the standard library')\n",
        asks="import colorsys\nFILE = colorsys.__file__\n",
    )
    sys.modules.pop("colorsys", None)
    assert not Path(load_from_file(f"{tmp_path / 'asks.py'}:FILE", "value")).is_relative_to(tmp_path)


def test_two_versions_of_a_neighbour_are_two(tmp_path: Path) -> None:
    for version in ("old", "new"):
        folder_with(
            tmp_path / version,
            versioned_neighbour=f"VERSION = {version!r}\n",
            asks="from versioned_neighbour import VERSION\n",
        )
    asked = [load_from_file(f"{tmp_path / v / 'asks.py'}:VERSION", "value") for v in ("old", "new", "old")]
    assert asked == ["old", "new", "old"]


def test_the_path_is_as_before_when_a_file_cannot_be_loaded(tmp_path: Path) -> None:
    folder_with(tmp_path, broken="import no_such_neighbour\n")
    before = list(sys.path)
    with pytest.raises(UsageError, match="ModuleNotFoundError"):
        load_from_file(f"{tmp_path / 'broken.py'}:A", "value")
    assert sys.path == before
