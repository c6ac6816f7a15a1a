"""Two Ray workers and a Redis on this host: one worker is killed in the middle, and nothing is lost but its task."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.errors import UsageError
from harness.fuzzing.engine_options import EngineOptions
from harness.fuzzing.session import SessionOptions
from harness.record import read_records
from harness.running.options import RunOptions

pytestmark = pytest.mark.nightly
pytest.importorskip("ray", reason="the distributed extra is not installed")
pytest.importorskip("redis", reason="the distributed extra is not installed")
SWA = "flashinfer-swa-merge@emulated"


@pytest.fixture
def redis_url(tmp_path: Path) -> Iterator[str]:
    if shutil.which("redis-server") is None:
        pytest.skip("no redis-server here")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = ["redis-server", "--port", str(port), "--save", "", "--dir", str(tmp_path), "--bind", "127.0.0.1"]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        for _ in range(100):
            with socket.socket() as client:
                if client.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        yield f"redis://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(timeout=10)


def busy_workers() -> list[int]:
    """Ray workers that descend from this process and are running a task."""
    parents, busy = {}, []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            pid, stat = int(folder.name), (folder / "stat").read_text()
            parents[pid] = int(stat.rpartition(")")[2].split()[1])
            if (folder / "cmdline").read_bytes().startswith(b"ray::run_task"):
                busy.append(pid)
        except (OSError, ValueError):
            continue

    def is_mine(pid: int) -> bool:
        while pid > 1:
            if pid == os.getpid():
                return True
            pid = parents.get(pid, 0)
        return False

    return [pid for pid in busy if is_mine(pid)]


def test_a_lost_worker_costs_its_task_only(tmp_path: Path, redis_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    from harness.fuzzing.distributed import DistributedSession, shared_database

    options = SessionOptions((SWA,), seed=1, examples=60, workers=2)
    run_options = RunOptions(fault="window-one-too-wide")
    session = DistributedSession(options, run_options, tmp_path, address="local", redis=redis_url, task_examples=20)
    killed: list[int] = []

    def kill_one() -> None:
        until = time.monotonic() + 120
        while not killed and time.monotonic() < until:
            for pid in busy_workers()[:1]:
                time.sleep(3.0)  # let it get somewhere
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)
            time.sleep(0.1)

    killer = threading.Thread(target=kill_one)
    killer.start()
    result = session.run()
    killer.join()
    assert killed
    assert "was lost" in capsys.readouterr().err
    assert len(result.findings) == 1  # though both workers make it
    told = result.findings[0].explanation
    assert "window-one-too-wide" in (told.fault, *told.equals)
    records = list(read_records(result.folder / "records.jsonl"))
    assert result.cases == 60
    assert len(records) == 61
    database = shared_database(redis_url, EngineOptions(SWA))
    assert database is not None


def test_who_does_not_answer_is_one_sentence(tmp_path: Path) -> None:
    from harness.fuzzing.distributed import DistributedSession, shared_database

    with pytest.raises(UsageError, match=r"^no Redis answers at redis://127\.0\.0\.1:1: "):
        shared_database("redis://127.0.0.1:1", EngineOptions(SWA))
    session = DistributedSession(SessionOptions((SWA,), examples=1), RunOptions(), tmp_path, address="127.0.0.1:1")
    with pytest.raises(UsageError, match=r"^no Ray cluster at 127\.0\.0\.1:1: "):
        session.run()
