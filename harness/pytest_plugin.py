"""pytest: the differential suite as ordinary test items, on any number of workers and GPUs.

Kernels never run in a pytest process: each has one kernel worker beside it, whose GPU is set in the
environment it is started with, before anything can touch CUDA. A crash costs one item.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.environment import gpu_ids
from harness.errors import UsageError
from harness.record import Record, RecordWriter
from harness.running.options import EVIDENCE, Job, RunOptions
from harness.running.pool import WorkerProcess
from harness.running.runner import examine_with_reruns, make_worker
from harness.verdict import Verdict

DEFAULT_SUITES = ("smoke", "seeds", "corpus")
MARKERS = (
    "gpu: needs a CUDA GPU",
    "nightly: long; run with `-m nightly`",
    "browser: needs headless Chromium",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("attn-harness", "differential attention tests")
    group.addoption(
        "--suite", action="append", default=[], help="suite of cases (repeatable; default: smoke, seeds, corpus)"
    )
    group.addoption("--adapter", action="append", default=[], help="adapter name, glob or file.py:Class (repeatable)")
    group.addoption("--fault", default=None, help="put this named fault into every adapter")
    group.addoption("--evidence", default="default", choices=EVIDENCE, help="kinds of evidence to gather")
    group.addoption("--atol", type=float, default=None, help="a flat max-abs-diff that must hold too")
    group.addoption("--workers-per-gpu", type=int, default=1, help="with `-n auto`: workers that share a GPU")
    group.addoption("--records", default=None, help="file for the records (default: reports/pytest-RUN.jsonl)")


def pytest_configure(config: pytest.Config) -> None:
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)
    if config.getoption("--suite") or config.getoption("--adapter"):
        _jobs(config)  # a name that there is not is told here, in one line


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """`-n auto`: one worker per GPU; without a GPU xdist's own count of cores."""
    gpus = len(gpu_ids())
    return gpus * config.getoption("--workers-per-gpu") if gpus else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave nightly tests out unless the marker expression asks for them."""
    if "nightly" in config.getoption("-m", default=""):
        return
    kept = [item for item in items if item.get_closest_marker("nightly") is None]
    if len(kept) < len(items):
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = kept


# -- the differential items ----------------------------------------------------------------------
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "differential" in metafunc.fixturenames:
        jobs = _jobs(metafunc.config)
        ids = [f"{job.adapter}-{job.case.name}-{job.case.id}" for job in jobs]
        metafunc.parametrize("differential", jobs, ids=ids, indirect=True)
    elif "adapter_not_run" in metafunc.fixturenames:
        metafunc.parametrize("adapter_not_run", _not_run(metafunc.config))


def _jobs(config: pytest.Config) -> list[Job]:
    from harness.cli.selection import make_jobs, select_adapters, select_cases

    try:
        cases = select_cases(config.getoption("--suite") or DEFAULT_SUITES, ())
        return make_jobs(select_adapters(config.getoption("--adapter")), cases)
    except ValueError as problem:  # UsageError and CaseError
        raise pytest.UsageError(str(problem)) from None


def _not_run(config: pytest.Config) -> list[Any]:
    """Adapters that were not asked to stay away and cannot run here, as skipped parameters."""
    from harness.adapters import registry

    if config.getoption("--adapter"):
        return []
    count = len({job.case.id for job in _jobs(config)})
    return [
        pytest.param(
            entry.name,
            id=entry.name,
            marks=pytest.mark.skip(reason=f"NOT RUN {entry.name}: {count} cases; {entry.why_not}"),
        )
        for entry in registry.available()
        if entry.why_not is not None
    ]


class DifferentialCheck:
    """One (case, adapter) of the differential suite."""

    def __init__(self, job: Job, record: Record) -> None:
        self.job, self.record = job, record

    def assert_pass(self) -> None:
        """PASS passes; UNSUPPORTED, declared beforehand, is a skip; everything else fails."""
        record = self.record
        if record.verdict is Verdict.UNSUPPORTED:
            pytest.skip(f"UNSUPPORTED: {record.reason}")
        if record.verdict is not Verdict.PASS:
            pytest.fail(failure_text(record), pytrace=False)


def failure_text(record: Record) -> str:
    """What a failing item says: verdict, reason, evidence, explanation, and how to run it again."""
    lines = [f"{record.verdict} {record.adapter} on case {record.case.id} ({record.case.name})", record.reason]
    lines += record.explanation
    said = {True: "held", False: "FAILED", None: "does not apply"}
    lines += [f"  {e.kind}: {said[e.passed]}  {e.message}".rstrip() for e in record.evidence]
    if record.stability is not None:
        lines.append(f"run three times: {record.stability}")
    to = f"--adapter {record.adapter}" + (f" --fault {record.fault}" if record.fault else "")
    if record.suite is None:  # a generated case is in no suite, and in no file
        lines += [f"case: {json.dumps(record.case.to_json())}", f"again: attn-harness replay FILE {to}, of that line"]
    else:
        lines.append(f"again: attn-harness run --suite {record.suite} -k {record.case.id} {to}")
    return "\n".join(lines)


@pytest.fixture(scope="session")
def kernel_worker() -> Iterator[WorkerProcess]:
    """This pytest process's kernel worker, on its share of the GPUs."""
    worker_id = os.environ.get("PYTEST_XDIST_WORKER", "gw0")
    worker = make_worker(int(worker_id.removeprefix("gw")), of=int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))
    yield worker
    worker.stop()


@pytest.fixture(scope="session")
def record_writer(request: pytest.FixtureRequest) -> Iterator[RecordWriter]:
    """The records of this test run; xdist workers append to one file."""
    chosen = request.config.getoption("--records")
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))[:12]
    writer = RecordWriter(Path(chosen) if chosen else Path("reports") / f"pytest-{run}.jsonl")
    yield writer
    writer.close()


@pytest.fixture
def differential(
    request: pytest.FixtureRequest, kernel_worker: WorkerProcess, record_writer: RecordWriter, record_property: Any
) -> DifferentialCheck:
    """Run the item's case in the kernel worker; the record is kept whatever the verdict."""
    config, job = request.config, request.param
    evidence = config.getoption("--evidence")
    if evidence == "default" and request.node.get_closest_marker("nightly") is not None:
        evidence = "all"
    options = RunOptions(evidence=evidence, atol=config.getoption("--atol"), fault=config.getoption("--fault"))
    try:
        record = examine_with_reruns(kernel_worker, job, options)
    except UsageError as problem:
        pytest.fail(str(problem), pytrace=False)
    record_writer.write(record)
    record_property("verdict", str(record.verdict))
    record_property("max_abs_diff", record.max_abs_diff)
    return DifferentialCheck(job, record)


@pytest.fixture
def adapter_not_run(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say by name what was not run here, so that nobody takes a skip for a pass."""
    lines = sorted({_skip_reason(report) for report in terminalreporter.stats.get("skipped", [])})
    not_run = [line for line in lines if line.startswith("NOT RUN")]
    if not_run:
        terminalreporter.section("not run here")
        for line in not_run:
            terminalreporter.write_line(line.removeprefix("NOT RUN "))


def _skip_reason(report: Any) -> str:
    longrepr = report.longrepr
    reason = longrepr[2] if isinstance(longrepr, tuple) else str(longrepr)
    return reason.removeprefix("Skipped: ")
