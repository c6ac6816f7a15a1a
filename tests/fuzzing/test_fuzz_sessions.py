"""Sessions over real workers: what adapters do to their process costs one case, and everything found is kept."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from cases import AttentionCase
from cases.corpus_io import load_case_file, load_corpus
from harness.errors import UsageError
from harness.fuzzing.findings import read_finding
from harness.fuzzing.kernels import LocalKernels
from harness.fuzzing.promoting import promote_finding
from harness.fuzzing.session import Session, SessionOptions, SessionResult
from harness.record import Record, read_records
from harness.running.options import RunOptions
from harness.verdict import Verdict
from tests.child_processes import child_process

HERE = Path(__file__).parent
MISBEHAVING = HERE.parent / "running" / "misbehaving.py"
WRONG = HERE / "wrong_kernels.py"
SWA = "flashinfer-swa-merge@emulated"


def run_session(
    tmp_path: Path, *adapters: str, fault: str | None = None, limit: float = 60.0, **more: object
) -> SessionResult:
    options = SessionOptions(adapters, **({"seed": 1, "examples": 2} | more))  # type: ignore[arg-type]
    return Session(options, RunOptions(fault=fault, time_limit=limit), tmp_path).run()


@pytest.mark.parametrize(
    ("name", "verdict", "says"),
    [
        ("Exits", Verdict.CRASH, "the worker died in run with exit code 3"),
        ("Raises", Verdict.CRASH, "run raised RuntimeError: not supported"),
        ("Hangs", Verdict.TIMEOUT, "no answer within 1 s in run"),
    ],
)
def test_misbehaving_adapters_are_survived(tmp_path: Path, name: str, verdict: Verdict, says: str) -> None:
    result = run_session(tmp_path, f"{MISBEHAVING}:{name}", limit=1.0 if name == "Hangs" else 60.0)
    assert [f.record.verdict for f in result.findings] == [verdict]
    finding = result.findings[0]
    assert says in finding.record.reason
    assert finding.record.case.total_kv == 1
    assert result.folders[0].name.startswith(f"{name}--")
    assert result.cases == 2
    text = (result.folders[0] / "explanation.txt").read_text()
    assert f"--adapter {MISBEHAVING}:{name}" in text


def test_explaining_a_lost_device_costs_no_case_after_it(tmp_path: Path) -> None:
    result = run_session(tmp_path, f"{MISBEHAVING}:LosesItsDevice", seed=2, examples=20)
    records = [r for r in read_records(result.folder / "records.jsonl") if r.stability is None]
    assert [f.record.verdict for f in result.findings] == [Verdict.CRASH]
    first = next(n for n, record in enumerate(records) if record.verdict is Verdict.CRASH)
    assert Verdict.PASS in {record.verdict for record in records[first + 1 :]}
    assert {record.verdict for record in records} == {Verdict.PASS, Verdict.CRASH}


def test_two_adapters_two_workers_one_folder(tmp_path: Path) -> None:
    good, bad = "flash-attn-2@emulated", f"{WRONG}:WindowOneTooLong"
    result = run_session(tmp_path, good, bad, examples=8)
    records = list(read_records(result.folder / "records.jsonl"))
    made = [(r.adapter, r.case.id) for r in records]
    assert {adapter for adapter, _ in made} == {good, bad}
    assert result.cases == 16
    assert len(records) == 16 + len(result.findings)
    assert [f.record.adapter for f in result.findings] == [bad]
    assert result.findings[0].explanation.fault == "window-one-too-wide"
    session = json.loads((result.folder / "session.json").read_text())
    assert (session["state"], session["cases"], len(session["findings"])) == ("ended", 16, 1)
    coverage = json.loads((result.folder / "coverage.json").read_text())
    assert coverage[good]["cases"] == 8
    assert coverage[good]["edges"]["one request"] >= 1
    assert "sinks" in coverage[good]["beyond"]
    steps = list(read_records(result.folder / "shrinking.jsonl"))
    assert len(steps) == result.shrink_runs


def test_three_bugs_of_an_outside_adapter_are_three_findings(tmp_path: Path) -> None:
    result = run_session(tmp_path, f"{WRONG}:ThreeBugs", examples=9, seed=4)
    assert [f.explanation.fault for f in result.findings] == ["window-one-too-wide", "kv-heads-interleaved", None]
    assert "counts twice" in "\n".join(result.findings[2].explanation.lines)


def test_shards_of_one_adapter_keep_a_finding_once(tmp_path: Path) -> None:
    def local(adapter: str, options: RunOptions, index: int) -> LocalKernels:
        del index
        return LocalKernels(adapter, options.fault)

    options = SessionOptions((SWA,), seed=1, examples=9, workers=2)
    session = Session(options, RunOptions(fault="window-one-too-wide"), tmp_path, make_kernels=local)
    result = session.run()
    assert [f.explanation.fault for f in result.findings] == ["window-one-too-wide"]
    assert result.cases == 9


def test_a_finding_folder_replays_and_is_promoted(tmp_path: Path) -> None:
    result = run_session(tmp_path, f"{WRONG}:HeadsInterleaved", examples=12, seed=3)
    folder = result.folders[0]
    finding = read_finding(folder)
    assert finding.case == load_case_file(folder / "case.json") == result.findings[0].record.case
    assert load_case_file(folder / "original.json") == result.findings[0].original.case
    assert finding.about["fault"] == "kv-heads-interleaved"
    assert "repro.py was run and shows it." in (folder / "explanation.txt").read_text()

    corpus = tmp_path / "corpus"
    path = promote_finding(finding, reference="mine PR #7", corpus=corpus)
    entry = load_corpus(corpus)[0]
    assert (entry.name, entry.case) == (path.stem, finding.case)
    assert (entry.provenance.project, entry.provenance.reference) == ("mine", "mine PR #7")
    assert entry.provenance.fault_class == "layout / strides"
    for again, says in ((None, "exists already"), ("other", "has this case already, as")):
        with pytest.raises(UsageError, match=says):
            promote_finding(finding, name=again, corpus=corpus)
    with pytest.raises(UsageError, match="is no name for a corpus file"):
        promote_finding(finding, name="../x", corpus=corpus)
    with pytest.raises(UsageError, match="--class is 'nonsense'"):
        promote_finding(finding, name="third", fault_class="nonsense", corpus=tmp_path / "empty")


def test_what_is_no_finding_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"is no finding: .*there is no such file"):
        read_finding(tmp_path)
    bare = AttentionCase(requests=((1, 1),))  # type: ignore[arg-type]
    (tmp_path / "case.json").write_text(json.dumps(bare.to_json()))
    with pytest.raises(UsageError, match="is a case but no finding"):
        read_finding(tmp_path)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"examples": 0}, "--examples is 0; give 1 or more"),
        ({"examples": None}, "a session needs an end"),
        ({"minutes": -1.0}, "--minutes is -1.0; give a positive number"),
        ({"workers": 0}, "--workers is 0"),
        ({"seed": -4}, "--seed is -4"),
        ({"profile": "huge"}, "no profile is called 'huge'"),
    ],
)
def test_bad_options_are_one_sentence(changes: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        SessionOptions((SWA,), **({"examples": 5} | changes))  # type: ignore[arg-type]


def test_an_adapter_that_cannot_be_loaded_ends_the_session_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^adapter .*:Missing cannot be loaded: .*has no 'Missing'"):
        run_session(tmp_path, f"{WRONG}:Missing")
    with pytest.raises(UsageError, match="acts inside emulated kernels"):
        run_session(tmp_path, "torch-sdpa", fault="sink-in-base-2")


def started(tmp_path: Path, *arguments: str) -> AbstractContextManager[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "harness.cli.main", "fuzz", "--minutes", "5", "--seed", "1", *arguments]
    return child_process(command, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.PIPE)


def wait_until(seen: Callable[[], bool]) -> None:
    until = time.monotonic() + 120
    while time.monotonic() < until and not seen():
        time.sleep(0.02)
    assert seen()


def interrupted(process: subprocess.Popen[str]) -> tuple[str, str]:
    """What it wrote to standard output and standard error after Ctrl-C."""
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    return out, err


def test_ctrl_c_ends_cleanly_with_everything_kept(tmp_path: Path) -> None:
    with started(tmp_path, "-a", "flash-attn-2@emulated") as process:
        wait_until(lambda: any(p.stat().st_size for p in tmp_path.glob("reports/fuzz/*/records.jsonl")))
        out, _ = interrupted(process)
    assert "0 findings" in out
    folder = next(tmp_path.glob("reports/fuzz/*"))
    assert json.loads((folder / "session.json").read_text())["state"] == "interrupted"
    records = list(read_records(folder / "records.jsonl"))
    assert records
    assert {r.verdict for r in records} == {Verdict.PASS}


class PressesCtrlC(LocalKernels):
    """Ctrl-C comes in the middle of the third case that fails, which takes a second more."""

    failed = 0

    def examine(self, case: AttentionCase, options: RunOptions) -> Record:
        record = super().examine(case, options)
        self.failed += record.verdict.is_finding
        if self.failed == 3:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(1)
        return record


@pytest.fixture
def ctrl_c_is_heard() -> Iterator[None]:
    """Also where these tests run in the background of a shell, which starts them with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c_is_heard")
def test_ctrl_c_waits_for_the_case_in_flight_and_keeps_what_is_being_shrunk(tmp_path: Path) -> None:
    kernels = PressesCtrlC(SWA, "window-one-too-wide")
    options = SessionOptions((SWA,), seed=2, examples=100)
    result = Session(options, RunOptions(), tmp_path, make_kernels=lambda *_: kernels).run()
    assert (result.interrupted, kernels.failed) == (True, 3)
    assert [f.explanation.lines for f in result.findings] == [("not explained: the session was interrupted.",)]
    assert result.shrink_runs > 0
    assert json.loads((tmp_path / "fuzz" / result.folder.name / "session.json").read_text())["findings"]


def test_ctrl_c_while_workers_start(tmp_path: Path) -> None:
    with started(tmp_path, "-a", "flash-attn-2@emulated", "-a", f"{WRONG}:WindowOneTooLong") as process:
        wait_until(lambda: any(tmp_path.glob("reports/fuzz/*/session.json")))  # written before any worker is asked for
        out, _ = interrupted(process)
    assert "0 findings" in out
    assert json.loads(next(tmp_path.glob("reports/fuzz/*/session.json")).read_text())["state"] == "interrupted"


def test_ctrl_c_while_modules_are_imported(tmp_path: Path) -> None:
    with started(tmp_path, "-a", "flash-attn-2@emulated") as process:
        wait_until(lambda: "torch/" in Path(f"/proc/{process.pid}/maps").read_text())
        assert "interrupted" in interrupted(process)[1]
    assert not list(tmp_path.glob("reports/fuzz/*/findings"))
