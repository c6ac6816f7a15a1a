"""How many workers share a GPU where nobody says, and how much each may compile at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness import environment
from harness.errors import UsageError
from harness.running import runner, sharing

GIB = 1 << 30


@pytest.mark.parametrize(
    ("gpus", "cores", "memory", "cases", "expected"),
    [
        (1, 16, 139 * GIB, 1000, 8),
        (1, 16, 139 * GIB, 100, 1),  # starting a second costs more than it saves
        (1, 16, 139 * GIB, 256, 4),
        (1, 4, 139 * GIB, 1000, 2),
        (8, 128, 79 * GIB, 4000, 6),
        (8, 128, 79 * GIB, 1024, 2),  # each GPU has its part of the cases
        (1, 16, 8 * GIB, 1000, 1),
        (1, 16, 0, 1000, 1),  # a driver that does not say
    ],
)
def test_cores_memory_and_cases_bound_it(
    gpus: int, cores: int, memory: int, cases: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (sharing, runner):
        monkeypatch.setattr(module, "gpu_ids", lambda: tuple(map(str, range(gpus))))
    monkeypatch.setattr(sharing, "core_count", lambda: cores)
    monkeypatch.setattr(sharing, "least_shared_memory", lambda: memory)
    assert sharing.workers_per_gpu(cases) == expected
    assert runner.default_workers(cases) == gpus * expected
    assert runner.default_workers(cases, 3) == gpus * 3, "what was asked for"


def test_without_a_gpu_there_is_one_for_each_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "gpu_ids", tuple)
    assert runner.default_workers(1000) == environment.core_count()


def test_compilers_are_divided_among_workers_unless_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "core_count", lambda: 16)
    monkeypatch.delenv("MAX_JOBS", raising=False)
    assert runner.make_worker(0, of=8).environment["MAX_JOBS"] == "2"
    assert runner.make_worker(0, of=50).environment["MAX_JOBS"] == "1"
    monkeypatch.setenv("MAX_JOBS", "5")
    assert runner.make_worker(0, of=8).environment["MAX_JOBS"] == "5"


@pytest.mark.parametrize(
    ("said", "memory"),
    [
        ("143771, Default\n81920, Default\n", 81920 << 20),
        ("[N/A], Default\n81920, Default\n", 0),
        ("143771, Exclusive_Process\n", 0),
        ("", 0),
    ],
    ids=["two", "unknown", "not to be shared", "none"],
)
def test_memory_is_of_the_fullest_gpu(said: str, memory: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], **_: Any) -> Any:
        assert "--query-gpu=memory.free,compute_mode" in command
        return environment.subprocess.CompletedProcess(command, 0, said, "")

    monkeypatch.setattr(environment.shutil, "which", lambda _: "/bin/nvidia-smi")
    monkeypatch.setattr(environment.subprocess, "run", run)
    assert environment.least_shared_memory.__wrapped__() == memory


def test_a_driver_that_hangs_is_told_and_does_not_end_what_need_not_ask_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\nexec sleep 60\n")
    tool.chmod(0o755)
    monkeypatch.setattr(environment.shutil, "which", lambda _: str(tool))
    monkeypatch.setattr(environment, "DRIVER_LIMIT", 0.2)
    assert environment.least_shared_memory.__wrapped__() == 0
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with pytest.raises(UsageError, match="gives no answer"):
        environment.gpu_ids.__wrapped__()
