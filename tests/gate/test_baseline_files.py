"""Baselines, record files and plans on disk: exact, whole, and refused in one sentence."""

import json
import threading
from pathlib import Path

import pytest
from synthetic import a_case, a_finding, a_record, many_records, write_records

from harness.errors import UsageError
from harness.gate.baseline import Figure, baseline_from_records, read_baseline, write_baseline
from harness.record_files import (
    RunPlan,
    load_records,
    new_record_path,
    plan_path,
    read_plan,
    save_plan,
    write_case,
    write_plan,
)
from harness.running.options import Job
from harness.verdict import Verdict


def test_a_baseline_round_trips(tmp_path: Path) -> None:
    baseline = baseline_from_records([*many_records(200), a_record(0), a_record(0, error=0.006)])
    write_baseline(tmp_path / "b" / "x.jsonl", baseline)
    assert read_baseline(tmp_path / "b" / "x.jsonl") == baseline


def test_several_runs_give_the_spread() -> None:
    (entry,) = baseline_from_records(
        [a_record(0, error=0.004, seconds=3.0), a_record(0, error=0.007, seconds=1.0), a_record(0, error=0.005)]
    ).values()
    assert entry.max_abs_diff == Figure(0.007, pytest.approx(0.003))
    assert entry.runs == 3
    assert entry.seconds == 1.0


def test_a_baseline_is_not_made_of_faults_or_of_errors_of_the_harness() -> None:
    with pytest.raises(UsageError, match="swa-merge-window-missing"):
        baseline_from_records([a_finding(0, fault="swa-merge-window-missing")])
    with pytest.raises(UsageError, match="the harness itself failed"):
        baseline_from_records([a_record(0, Verdict.ERROR)])


def test_its_lines_are_sorted_so_that_two_differ_where_they_differ(tmp_path: Path) -> None:
    records = many_records(60)
    write_baseline(tmp_path / "a.jsonl", baseline_from_records(records))
    write_baseline(tmp_path / "b.jsonl", baseline_from_records(reversed(records)))
    assert (tmp_path / "a.jsonl").read_bytes() == (tmp_path / "b.jsonl").read_bytes()


@pytest.mark.parametrize(
    ("break_it", "said"),
    [
        (lambda lines: ['{"baseline_version": 99, "entries": 2}', *lines[1:]], "baseline_version 99"),
        (lambda lines: lines[1:], "no baseline_version"),
        (lambda lines: lines[:-1], "says it has 2 entries and has 1"),
        (lambda lines: [*lines[:-1], lines[-1][:50]], "line 3 is no JSON"),
        (lambda lines: [*lines[:-1], "[]"], "line 3 is no JSON object"),
        (lambda lines: [*lines[:-1], lines[-1].replace('"runs":1,', "")], "has no field 'runs'"),
        (lambda lines: [*lines[:-1], lines[-1].replace('"PASS"', '"FINE"')], "'FINE'"),
        (lambda _: [], "no baseline_version"),
    ],
)
def test_a_broken_baseline_is_one_sentence(tmp_path: Path, break_it, said: str) -> None:
    path = tmp_path / "b.jsonl"
    write_baseline(path, baseline_from_records([a_record(0), a_record(1)]))
    path.write_text("\n".join(break_it(path.read_text().splitlines())))
    with pytest.raises(UsageError) as refusal:
        read_baseline(path)
    assert said in str(refusal.value)
    assert str(path) in str(refusal.value)


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("case_id", {}, "case_id is an object; it must be text"),
        ("device", None, "device is None; it must be text"),
        ("versions", None, "versions is None; it must be an object"),
        ("versions", {"torch": 2}, "versions['torch'] is 2; it must be text"),
        ("runs", "3", "runs is '3'; it must be a number"),
        ("seconds", [], "seconds is a list; it must be a number or null"),
        ("max_abs_diff", "12", "a figure is '12'; it must be a list"),
        ("max_abs_diff", ["1", 0], "a figure is '1'; it must be a number"),
        ("max_abs_diff", [10**400, 0], "a figure is past what a number holds"),
        ("certificates", {"flat": [1, None]}, "passed is 1; it must be true or false or null"),
    ],
)
def test_a_field_of_another_type_is_refused_with_its_place(
    tmp_path: Path, field: str, value: object, said: str
) -> None:
    path = tmp_path / "x.jsonl"
    write_baseline(path, baseline_from_records([a_record(0)]))
    header, entry = path.read_text().splitlines()
    path.write_text(f"{header}\n{json.dumps(json.loads(entry) | {field: value})}\n")
    with pytest.raises(UsageError) as refusal:
        read_baseline(path)
    assert f"x.jsonl line 2 cannot be read: {said}" in str(refusal.value).replace("a certificate's ", "")


def test_no_baseline_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="gate --update"):
        read_baseline(tmp_path / "none.jsonl")


def test_writers_at_once_leave_one_of_them_whole(tmp_path: Path) -> None:
    """Two gates that update one baseline: the last one wins, and no reader ever sees half of it."""
    path = tmp_path / "b.jsonl"
    sizes = (50, 400)
    baselines = [baseline_from_records(many_records(size, seed=size)) for size in sizes]
    write_baseline(path, baselines[0])
    stop = threading.Event()
    failures: list[BaseException] = []

    def read() -> None:
        try:
            while not stop.is_set():
                assert len(read_baseline(path)) in sizes
        except BaseException as problem:
            failures.append(problem)

    reader = threading.Thread(target=read)
    reader.start()
    for turn in range(20):
        write_baseline(path, baselines[turn % 2])
    stop.set()
    reader.join()
    assert failures == []
    assert [p.name for p in tmp_path.iterdir()] == ["b.jsonl"]


def test_two_runs_at_once_have_two_files(tmp_path: Path) -> None:
    paths = {new_record_path(tmp_path, "gate") for _ in range(20)}
    assert len(paths) == 20
    assert all(path.exists() and path.name.startswith("gate-") for path in paths)


def test_a_plan_says_what_is_missing(tmp_path: Path) -> None:
    path = write_records(tmp_path / "run.jsonl", [a_record(0)])
    jobs = [Job(a_case(n), "flashinfer-swa-merge") for n in range(3)]
    write_plan(path, jobs, left_out=[("abc", "flash-attn-4")], shard=(1, 2))
    loaded = load_records([path])
    assert set(loaded.planned) - {r.key for r in loaded.records} == {(a_case(n).id, jobs[0].adapter) for n in (1, 2)}
    assert loaded.left_out == (("abc", "flash-attn-4"),)
    assert loaded.plans[0].shard == (1, 2)


def test_plans_round_trip_and_broken_ones_are_one_sentence(tmp_path: Path) -> None:
    records = tmp_path / "run.jsonl"
    assert read_plan(records) is None
    plan = RunPlan((("a", "b"), ("c", "d")), (("e", "f"),), (2, 3))
    save_plan(records, plan)
    assert read_plan(records) == plan
    for text in (
        "[]",
        "{",
        '{"plan_version": 1}',
        '{"plan_version": 1, "shard": null, "planned": [1], "left_out": []}',
    ):
        plan_path(records).write_text(text)
        with pytest.raises(UsageError, match="no plan of a run"):
            read_plan(records)
    plan_path(records).write_text('{"plan_version": 2}')
    with pytest.raises(UsageError, match="plan_version 2"):
        read_plan(records)


def test_records_are_read_from_folders_and_what_is_not_there_is_refused(tmp_path: Path) -> None:
    write_records(tmp_path / "r" / "one.jsonl", [a_record(0)])
    write_records(tmp_path / "r" / "two.jsonl", [a_record(1)])
    assert len(load_records([tmp_path / "r"]).records) == 2
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=r"holds no \.jsonl"):
        load_records([tmp_path / "empty"])
    with pytest.raises(UsageError, match="there is no file of records"):
        load_records([tmp_path / "nowhere.jsonl"])


def test_a_case_left_for_replay_is_the_case(tmp_path: Path) -> None:
    path = write_case(a_case(3), tmp_path)
    assert path == tmp_path / "failures" / f"{a_case(3).id}.json"
    assert type(a_case(3)).from_json(json.loads(path.read_text())) == a_case(3)
