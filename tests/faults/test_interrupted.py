"""Ctrl-C, and a process that dies, while faults are planted: a quick end, what there is told, and no process left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.errors import UsageError
from harness.faults.parallel import map_faults
from harness.faults.shots import Range
from tests.child_processes import child_process, children_of, is_alive

FAULTS = """
import os, time
from harness.faults.protocol import Fault, FaultClass

def waits(plan, batch):
    open(f"waits-{os.getpid()}", "w").close()
    time.sleep(600)

First = Fault("first", FaultClass.OTHER, "waits", on_plan=waits)
Second = Fault("second", FaultClass.OTHER, "waits", on_plan=waits)
"""


def assert_all_end(pids: list[int]) -> None:
    until = time.monotonic() + 20
    while any(map(is_alive, pids)) and time.monotonic() < until:
        time.sleep(0.1)
    assert not [pid for pid in pids if is_alive(pid)]


@pytest.fixture
def planting(tmp_path: Path):
    """`faults` with one fault measured, and two whose kernels never end, in two processes of one group."""
    (tmp_path / "slow.py").write_text(FAULTS)
    arguments = ["--suite", "quick", "-a", "flash-attn-3@emulated", "--processes", "2", "--json"]
    for fault in ("window-ignored", "slow.py:First", "slow.py:Second"):
        arguments += ["--fault", fault]
    command = [sys.executable, "-m", "harness.cli.main", "faults", *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with child_process(command, cwd=tmp_path, start_new_session=True, **pipes) as process:
        until = time.monotonic() + 120
        # The second waits once the process that it is in has told what it did before.
        while len(list(tmp_path.glob("waits-*"))) < 2 and time.monotonic() < until and process.poll() is None:
            time.sleep(0.1)
        time.sleep(0.5)
        yield process


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_measurement_ends_soon_and_tells_what_was_done(
    planting: subprocess.Popen[str], sent: signal.Signals, code: int
) -> None:
    started = children_of(planting.pid)
    assert len(started) >= 2
    begun = time.monotonic()
    # Ctrl-C of a terminal goes to the whole group; `kill` to one process.
    (os.killpg if sent is signal.SIGINT else os.kill)(planting.pid, sent)
    out, err = planting.communicate(timeout=60)
    assert time.monotonic() - begun < 5
    assert planting.returncode == code, err
    assert [told["fault"] for told in json.loads(out)] == ["window-ignored"]
    assert "1 of 3 faults were measured before it was interrupted." in err
    assert "Traceback" not in err
    assert_all_end(started)  # multiprocessing's own tracker ends when it notices


def test_processes_end_with_one_that_is_killed(planting: subprocess.Popen[str]) -> None:
    started = children_of(planting.pid)
    planting.kill()
    assert_all_end(started)


def test_a_process_that_dies_is_bad_use_in_one_sentence() -> None:
    with pytest.raises(UsageError, match="a process that plants faults died"):
        map_faults(_dies, ["a", "b"], (), processes=2)


def _dies(range_: Range, spec: str) -> None:
    os._exit(0)
