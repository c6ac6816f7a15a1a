"""Workers that die, hang, print and lie: one case is lost, never the run."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cases import AttentionCase, Request
from harness.errors import UsageError
from harness.fuzzing.signature import kind_of
from harness.record import Record
from harness.running import worker as running_worker
from harness.running.options import Job, RunOptions
from harness.running.pool import WorkerProcess
from harness.running.runner import examine_with_reruns, run_jobs
from harness.verdict import Stability, Verdict

FILE = Path(__file__).with_name("misbehaving.py")
CASE = AttentionCase(requests=(Request(9, 3), Request(0, 2)), window_left=4, page_size=4)
ONCE = RunOptions(rerun=False)


def job(name: str, case: AttentionCase = CASE) -> Job:
    return Job(case, f"{FILE}:{name}")


@pytest.fixture(scope="module")
def worker() -> Iterator[WorkerProcess]:
    process = WorkerProcess(threads=1)
    yield process
    process.stop()


@pytest.mark.parametrize(
    ("name", "verdict", "says"),
    [
        ("MyKernel", Verdict.PASS, ""),
        ("Prints", Verdict.PASS, ""),
        ("Exits", Verdict.CRASH, "exit code 3: about to go"),
        ("RemovesItsFolder", Verdict.CRASH, "ValueError: no folder"),
        ("Segfaults", Verdict.CRASH, "SIGSEGV"),
        ("LeavesADaemon", Verdict.CRASH, "exit code 7"),
        ("WritesToEveryPipe", Verdict.CRASH, "in run: no reply is what it wrote to its reply pipe ('hello')"),
        ("KillsItsParent", Verdict.CRASH, "the process that it was forked from was ended"),
        ("Raises", Verdict.CRASH, "RuntimeError: not supported"),
        ("ReturnsTensor", Verdict.CRASH, "the protocol wants AttentionOutput"),
        ("ExitsPolitely", Verdict.CRASH, "SystemExit"),
        ("RaisesInARule", Verdict.CRASH, "capabilities raised ZeroDivisionError"),
        ("RefusesWithoutAReason", Verdict.CRASH, "TypeError: a rule of the capabilities returned ''; return a reason"),
        ("RefusesWithANumber", Verdict.CRASH, "TypeError: a rule of the capabilities returned 5"),
        ("WrongDtype", Verdict.CRASH, "torch.float64"),
        ("ReturnsNan", Verdict.WRONG, "NaN"),
        ("ReturnsZero", Verdict.WRONG, "max-abs-diff"),
        ("WrongShape", Verdict.CRASH, "shape"),
        ("WindowOneTooLong", Verdict.WRONG, "max-abs-diff"),
        ("ReadsOneTooFar", Verdict.POISONED, "zeroed"),
    ],
)
def test_verdict(worker: WorkerProcess, name: str, verdict: Verdict, says: str) -> None:
    record = worker.examine(job(name), ONCE)
    assert (record.verdict, says in record.reason) == (verdict, True), record.reason


@pytest.mark.parametrize(
    ("name", "says", "line"),
    [
        ("Raises", "run raised RuntimeError: not supported: out of memory (at ", "raise RuntimeError("),
        ("RaisesInALibrary", "run raised IndexError: Dimension out of range", "# the call that raises"),
    ],
)
def test_what_an_adapter_raised_is_told_with_its_line(worker: WorkerProcess, name: str, says: str, line: str) -> None:
    number = next(n for n, text in enumerate(FILE.read_text().splitlines(), 1) if line in text)
    for record in (
        worker.examine(job(name), ONCE),
        *(worker.examine_many([job(name, CASE.replace(seed=s)) for s in (1, 2)], ONCE) or ()),
    ):
        assert record.verdict is Verdict.CRASH
        assert record.reason.startswith(says)
        assert record.reason.endswith(f"misbehaving.py:{number})")


@pytest.mark.parametrize("name", ["Raises", "ReturnsTensor"])
def test_a_lost_device_is_told_in_its_own_words(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # After an asynchronous fault any call may be the one that raises, with whatever it has to say.
    answers: list[dict[str, Any]] = []
    lost = "CUDA error: device-side assert triggered"
    monkeypatch.setattr(running_worker, "device_error", lambda _device: lost)
    request = {"op": "examine", "case": CASE.to_json(), "adapter": f"{FILE}:{name}", "options": {}}
    running_worker.Worker(answers.append).handle(request)
    assert answers[-1]["healthy"] is False
    record = Record.from_json(answers[-1]["record"])
    assert record.reason.startswith(f"the device was lost: {lost}; first seen when run raised ")
    assert kind_of(record) == f"crash: the device was lost: {lost}"


def test_a_wrong_kind_of_output_is_no_line_of_the_adapter(worker: WorkerProcess) -> None:
    assert ".py:" not in worker.examine(job("ReturnsTensor"), ONCE).reason


def test_an_adapter_finds_the_defaults_of_torch_that_it_left_and_the_harness_its_own(worker: WorkerProcess) -> None:
    worker.renew()
    told = [worker.examine(job("SetsDefaults", CASE.replace(seed=seed)), ONCE) for seed in range(2)]
    assert [(record.verdict, record.reason) for record in told] == [(Verdict.PASS, "")] * 2


def test_a_path_to_an_adapter_counts_from_where_the_worker_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kernel.py").symlink_to(FILE)
    monkeypatch.chdir(tmp_path)
    process = WorkerProcess(threads=1)
    try:
        assert process.examine(job("RemovesItsFolder"), ONCE).verdict is Verdict.CRASH
        assert process.examine(Job(CASE, "kernel.py:MyKernel"), ONCE).verdict is Verdict.PASS
    finally:
        process.stop()


def test_worker_is_replaced_after_each_death(worker: WorkerProcess) -> None:
    verdicts = [worker.examine(job(name), ONCE).verdict for name in ("Exits", "MyKernel", "Segfaults", "MyKernel")]
    assert verdicts == [Verdict.CRASH, Verdict.PASS, Verdict.CRASH, Verdict.PASS]


def test_hang_costs_one_case(worker: WorkerProcess) -> None:
    record = worker.examine(job("Hangs"), RunOptions(time_limit=2.0, rerun=False))
    assert (record.verdict, record.device) == (Verdict.TIMEOUT, "cpu")
    assert "2 s in run" in record.reason
    assert worker.examine(job("MyKernel"), ONCE).verdict is Verdict.PASS


@pytest.mark.parametrize(("name", "next_one"), [("LosesItsDevice", Verdict.PASS), ("SpoilsItsProcess", Verdict.ERROR)])
def test_a_process_that_is_of_no_use_any_more_is_replaced(worker: WorkerProcess, name: str, next_one: Verdict) -> None:
    """At once if waiting for the device tells it, else after one case that the harness fails on."""
    verdicts = [worker.examine(job(name, CASE.replace(seed=seed)), ONCE).verdict for seed in (2, 3, 4, 5)]
    assert verdicts == [Verdict.PASS, Verdict.CRASH, next_one, Verdict.PASS]


def test_wrong_every_time_is_deterministic(worker: WorkerProcess) -> None:
    record = examine_with_reruns(worker, job("ReturnsZero"), RunOptions())
    assert (record.verdict, record.stability) == (Verdict.WRONG, Stability.DETERMINISTIC)


def test_wrong_only_after_other_cases_is_state_dependent() -> None:
    process = WorkerProcess(threads=1)
    try:
        first = examine_with_reruns(process, job("WrongAfterTheFirst"), RunOptions(evidence="atol"))
        records = [
            examine_with_reruns(process, job("WrongAfterTheFirst", CASE.replace(seed=s)), RunOptions(evidence="atol"))
            for s in range(1, 5)
        ]
    finally:
        process.stop()
    assert first.verdict is Verdict.PASS
    assert Stability.STATE_DEPENDENT in {r.stability for r in records}


def test_unsupported_is_declared_not_read_from_a_text(worker: WorkerProcess) -> None:
    record = worker.examine(job("Raises", CASE.replace(logits_soft_cap=2.0)), ONCE)
    assert (record.verdict, record.reason) == (Verdict.UNSUPPORTED, "no logits soft cap")


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        (f"{FILE}:Missing", "has no 'Missing'"),
        ("/nowhere/file.py:Kernel", "does not exist"),
        (f"{FILE}", "path/to/file.py:ClassName"),
        ("no-such-adapter", "no adapter"),
        (f"{FILE}:NoLegs", "merge_legs = 0"),
    ],
)
def test_bad_adapter_is_one_sentence(worker: WorkerProcess, spec: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        worker.examine(Job(CASE, spec), ONCE)


def test_run_jobs_finishes_all_and_keeps_order_free() -> None:
    names = ["MyKernel", "Exits", "MyKernel", "Raises", "MyKernel", "ReturnsZero"]
    jobs = [job(name, CASE.replace(seed=at)) for at, name in enumerate(names)]
    records: list[Record] = []
    run_jobs(jobs, ONCE, records.append, workers=2)
    by_seed = {record.case.seed: record.verdict for record in records}
    assert by_seed == {
        0: Verdict.PASS, 1: Verdict.CRASH, 2: Verdict.PASS, 3: Verdict.CRASH, 4: Verdict.PASS, 5: Verdict.WRONG
    }  # fmt: skip


@pytest.mark.parametrize(("name", "verdict"), [("ExitsOnSeed3", Verdict.CRASH), ("WrongOnSeed3", Verdict.WRONG)])
def test_one_bad_case_in_a_group_costs_one_case(name: str, verdict: Verdict) -> None:
    jobs = [job(name, CASE.replace(seed=seed)) for seed in range(1, 13)]
    records: list[Record] = []
    run_jobs(jobs, ONCE, records.append, workers=1)
    told = sorted((record.case.seed, record.verdict) for record in records)
    assert told == [(seed, verdict if seed == 3 else Verdict.PASS) for seed in range(1, 13)]


def test_a_group_is_examined_together_by_its_worker(worker: WorkerProcess) -> None:
    jobs = [Job(CASE.replace(seed=seed), f"{FILE}:MyKernel", f"suite {seed}") for seed in range(4)]
    records = worker.examine_many(jobs, ONCE)
    assert records is not None
    assert [(r.case.seed, r.suite, r.verdict, r.adapter) for r in records] == [
        (seed, f"suite {seed}", Verdict.PASS, f"{FILE}:MyKernel") for seed in range(4)
    ]
    assert worker.examine_many([job("Exits", CASE.replace(seed=seed)) for seed in range(2)], ONCE) is None
    with pytest.raises(UsageError, match="no adapter"):
        worker.examine_many([Job(CASE, "no-such-adapter")] * 2, ONCE)


def test_same_seed_same_bits(worker: WorkerProcess) -> None:
    first, second = (worker.examine(job("ReturnsZero"), ONCE) for _ in range(2))
    assert first.max_abs_diff == second.max_abs_diff
    assert first.evidence == second.evidence


def test_a_forked_child_does_not_answer_for_the_worker() -> None:
    process = WorkerProcess(threads=1)
    try:
        records = [
            process.examine(job("Forks", CASE.replace(seed=s)), RunOptions(evidence="atol", rerun=False))
            for s in range(4)
        ]
    finally:
        process.stop()
    assert [record.case.seed for record in records] == [0, 1, 2, 3]
    assert records[0].verdict is Verdict.PASS
    assert records[3].verdict is Verdict.WRONG
