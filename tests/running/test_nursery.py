"""Renewed workers: fresh to whatever a case can leave behind, and cheap."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cases import AttentionCase, Request
from harness.errors import UsageError
from harness.running.options import EXPLAINED, Job, RunOptions
from harness.running.pool import ROOT, WorkerProcess
from harness.running.runner import examine_with_reruns
from harness.verdict import Stability, Verdict

FILE = Path(__file__).with_name("misbehaving.py")
CASE = AttentionCase(requests=(Request(9, 3), Request(0, 2)), window_left=4, page_size=4)
ONCE = RunOptions(rerun=False, explain=False, evidence="atol")


def job(name: str, seed: int = 0) -> Job:
    return Job(CASE.replace(seed=seed), f"{FILE}:{name}")


@pytest.fixture(scope="module")
def worker() -> Iterator[WorkerProcess]:
    process = WorkerProcess(threads=1)
    yield process
    process.stop()


def exists(pid: int) -> bool:
    """Whether a process lives; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def gone(pid: int, seconds: float = 20.0) -> bool:
    until = time.monotonic() + seconds
    while exists(pid) and time.monotonic() < until:
        time.sleep(0.05)
    return not exists(pid)


def pid_of(worker: WorkerProcess) -> int:
    assert worker._process is not None
    return worker._process.pid


def test_renewing_costs_a_small_part_of_a_start(worker: WorkerProcess) -> None:
    worker.stop()
    start = time.monotonic()
    worker.start()
    first = time.monotonic() - start
    took = []
    for _ in range(3):
        before = pid_of(worker)
        start = time.monotonic()
        worker.renew()
        worker.start()
        took.append(time.monotonic() - start)
        assert pid_of(worker) != before
        assert not exists(before)
    assert min(took) < first / 4


def test_nothing_of_a_case_is_in_the_next_process(worker: WorkerProcess) -> None:
    """The adapter counts its runs in its class: after five it answers wrongly, until the process is a fresh one."""
    worker.renew()
    verdicts = [worker.examine(job("WrongAfterTheFirst", seed), ONCE).verdict for seed in range(5)]
    assert verdicts[0] is Verdict.PASS
    assert verdicts[-1] is Verdict.WRONG
    worker.renew()
    assert worker.examine(job("WrongAfterTheFirst", 4), ONCE).verdict is Verdict.PASS


def test_each_finding_is_run_again_in_a_process_of_its_own(worker: WorkerProcess) -> None:
    """Findings in a row of a kernel that is right only at first: in a shared process the second would not pass."""
    worker.renew()
    options = RunOptions(explain=False, evidence="atol")
    told = [examine_with_reruns(worker, job("WrongAfterTheFirst", seed), options) for seed in range(8)]
    found = [record.stability for record in told if record.verdict is Verdict.WRONG]
    assert len(found) >= 2
    assert set(found) == {Stability.STATE_DEPENDENT}


def living_in(group: int) -> list[str]:
    """The processes of a group that are no zombies, as `ps` lists them."""
    listed = subprocess.run(["ps", "-eo", "pgid=,pid=,stat="], capture_output=True, text=True, check=True).stdout
    return [line for line in listed.splitlines() if line.split()[0] == str(group) and "Z" not in line.split()[2]]


def test_a_process_takes_its_children_with_it(worker: WorkerProcess) -> None:
    worker.renew()
    worker.examine(job("LeavesAChild"), ONCE)
    group = pid_of(worker)
    assert len(living_in(group)) == 2  # the worker and its child
    worker.renew()
    until = time.monotonic() + 20.0  # a kill is sent at once and takes effect when the process is next scheduled
    while living_in(group) and time.monotonic() < until:
        time.sleep(0.05)
    assert living_in(group) == []


def test_a_lost_nursery_is_replaced(worker: WorkerProcess) -> None:
    worker.start()
    assert worker._nursery is not None
    lost = worker._nursery._process.pid
    os.kill(lost, 9)
    assert gone(lost)
    worker.renew()
    assert worker.examine(job("MyKernel"), ONCE).verdict is Verdict.PASS


@pytest.mark.parametrize("with_nursery", [False, True])
def test_nothing_is_left_of_a_parent_that_was_killed(with_nursery: bool) -> None:
    """Not even a worker in an endless loop, which does not see that its input ended."""
    script = f"""
import os, sys, threading, time
from cases import AttentionCase
from harness.running.options import Job, RunOptions
from harness.running.pool import WorkerProcess

w = WorkerProcess(threads=1)
w.start()
job = Job(AttentionCase(requests=((9, 3),)), {f"{FILE}:Loops"!r})
threading.Thread(target=w.examine, args=(job, RunOptions()), daemon=True).start()
used = lambda: sum(map(int, open(f"/proc/{{w._process.pid}}/stat").read().rsplit(")", 1)[1].split()[11:13]))
before = used()
while used() < before + 150:  # clock ticks: it loops
    time.sleep(0.05)
print(w._process.pid, w._nursery._process.pid, flush=True)
if {with_nursery}:
    os.kill(w._nursery._process.pid, 9)
os.kill(os.getpid(), 9)
"""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    ended = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    pids = [int(word) for word in ended.stdout.split()]
    assert len(pids) == 2, ended.stderr
    assert all(gone(pid) for pid in pids)


def test_a_python_that_cannot_run_a_worker_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot start a worker with /nowhere/python"):
        WorkerProcess(python="/nowhere/python").start()
    fake = tmp_path / "python"
    fake.write_text("#!/bin/sh\necho no module named torch >&2\nexit 1\n")
    fake.chmod(0o755)
    with pytest.raises(UsageError, match="did not start: no module named torch"):
        WorkerProcess(python=str(fake)).start()


def test_an_ended_worker_is_not_started_again() -> None:
    process = WorkerProcess(threads=1)
    process.close()
    with pytest.raises(UsageError, match="after its end"):
        process.start()


def test_the_first_few_findings_are_explained_though_each_had_a_fresh_process(worker: WorkerProcess) -> None:
    worker.stop()
    worker._explained.clear()
    large = CASE.replace(requests=((2200, 300),), window_left=None)  # told to be too large, which takes no time
    told = []
    for seed in range(5):
        if seed > 1:
            worker.renew()
        zero = Job(large.replace(seed=seed), f"{FILE}:ReturnsZero")
        told.append(worker.examine(zero, RunOptions(rerun=False, evidence="atol")))
    assert [bool(record.explanation) for record in told] == [True] * EXPLAINED + [False] * 2


def test_a_worker_imports_nothing_that_it_does_not_need() -> None:
    """Its start is torch's import and little else."""
    script = (
        "import sys, harness.running.worker;"
        "heavy = {'hypothesis', 'typer', 'rich', 'matplotlib', 'transformers', 'harness.diagnosis.explaining'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    listed = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert listed.stdout.strip() == "[]"


def test_a_file_beside_the_adapter_is_not_taken_for_a_module_of_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "random.py").write_text("raise RuntimeError('mine')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # the caller's may name the current folder
    process = WorkerProcess(threads=1)
    try:
        assert process.examine(Job(CASE, "torch-sdpa"), ONCE).verdict is Verdict.PASS
    finally:
        process.stop()
