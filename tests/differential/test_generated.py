"""Generated cases through every adapter that can run here: a few, always the same, and many, always others.

The strategies are those of `attn-harness fuzz`. The first test is for every run; the second is for nights
(`-m nightly`), and what it finds is kept in the example database `.hypothesis/examples`, which is tried first the
next time: keep it as an artifact.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.database import DirectoryBasedExampleDatabase

from cases import AttentionCase
from harness.cli.selection import select_adapters
from harness.environment import gpu_ids
from harness.fuzzing.drawing import cases_for
from harness.fuzzing.kernels import WorkerKernels
from harness.pytest_plugin import failure_text
from harness.record import Record, RecordWriter
from harness.running.options import RunOptions
from harness.verdict import Verdict

CI_EXAMPLES, NIGHTLY_EXAMPLES = 12, 1000
EXAMPLES = Path(".hypothesis") / "examples"
# Run only where they are asked for by name, or on a GPU.
LEFT_OUT = (
    "torch-flex",  # compiles for seconds for each new shape on a CPU
    "torch-flex-eager",  # rounds weights after normalising them, which no declared trait tells the certificates
)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "generated_for" in metafunc.fixturenames:
        chosen = metafunc.config.getoption("--adapter")
        adapters = select_adapters(chosen)
        if not chosen and not gpu_ids():
            adapters = [name for name in adapters if name not in LEFT_OUT]
        metafunc.parametrize("generated_for", adapters, scope="module")


@pytest.fixture(scope="module")
def kernels(generated_for: str, request: pytest.FixtureRequest) -> Iterator[WorkerKernels]:
    config = request.config
    options = RunOptions(
        evidence=config.getoption("--evidence"), atol=config.getoption("--atol"), fault=config.getoption("--fault")
    )
    index = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    made = WorkerKernels(generated_for, options, index)
    yield made
    made.stop()


def check_generated(kernels: WorkerKernels, writer: RecordWriter, profile: str, **chosen: Any) -> None:
    """Every case of a profile's draws is a PASS, or the smallest that is not is told."""
    records: dict[str, Record] = {}

    def generated_cases(case: AttentionCase) -> None:
        if case.id not in records:  # Hypothesis draws some cases twice, and replays what failed
            records[case.id] = kernels.examine(case, kernels.options)
            writer.write(records[case.id].replace(suite="generated"))
        record = records[case.id]
        if record.verdict is not Verdict.PASS:
            pytest.fail(failure_text(record), pytrace=False)

    test = given(cases_for(kernels.declaration(), profile, kernels.mend))(generated_cases)
    settings(deadline=None, suppress_health_check=list(HealthCheck), print_blob=False, **chosen)(test)()
    assert records, "no case was drawn"


def test_generated_cases(kernels: WorkerKernels, record_writer: RecordWriter) -> None:
    check_generated(
        kernels,
        record_writer,
        "ci",
        derandomize=True,
        database=None,
        max_examples=CI_EXAMPLES,
        phases=(Phase.generate, Phase.shrink),
    )


@pytest.mark.nightly
def test_generated_cases_at_random(kernels: WorkerKernels, record_writer: RecordWriter) -> None:
    check_generated(
        kernels,
        record_writer,
        "nightly" if gpu_ids() else "ci",
        database=DirectoryBasedExampleDatabase(EXAMPLES),
        max_examples=NIGHTLY_EXAMPLES,
        phases=(Phase.reuse, Phase.generate, Phase.shrink),
    )
