"""Shards: every case once, balanced, and the same on every machine; and the choice under a time limit."""

import json
import random
from pathlib import Path

import pytest
from synthetic import ADAPTERS, a_case, many_records

from cases import Request
from harness.errors import UsageError
from harness.gate.selection import choose, features, read_fault_table
from harness.gate.sharding import parse_shard, shard
from harness.running.options import Job

JOBS = [Job(a_case(n), adapter) for adapter in ADAPTERS[:3] for n in range(40)]


def key(job: Job) -> tuple[str, str]:
    return (job.case.id, job.adapter)


def skewed(seed: int) -> dict[tuple[str, str], float]:
    draw = random.Random(seed)
    return {key(job): draw.lognormvariate(0, 1.5) for job in JOBS if draw.random() < 0.9}


@pytest.mark.parametrize("count", [1, 2, 3, 7, 150])
@pytest.mark.parametrize("known", [True, False])
def test_every_job_is_in_exactly_one_shard(count: int, known: bool) -> None:
    seconds = skewed(count) if known else {}
    parts = [shard(JOBS, index, count, seconds) for index in range(1, count + 1)]
    assert sorted(key(job) for part in parts for job in part) == sorted(map(key, JOBS))


def test_a_shard_does_not_depend_on_the_order_of_the_jobs() -> None:
    turned = random.Random(1).sample(JOBS, len(JOBS))
    assert set(map(key, shard(JOBS, 2, 3, skewed(0)))) == set(map(key, shard(turned, 2, 3, skewed(0))))


def test_shards_are_balanced_by_recorded_seconds() -> None:
    for seed in range(10):
        seconds = skewed(seed)
        typical = sorted(seconds.values())[len(seconds) // 2]
        cost = {key(job): seconds.get(key(job), typical) for job in JOBS}
        loads = [sum(cost[key(job)] for job in shard(JOBS, index, 4, seconds)) for index in range(1, 5)]
        best = max(sum(cost.values()) / 4, max(cost.values()))
        assert max(loads) <= best * 4 / 3
        assert max(loads) <= best * 1.1  # what it gives on this data; the bound above is what is proven


def test_repeated_jobs_stay_together() -> None:
    twice = JOBS + JOBS
    assert len(shard(twice, 1, 3, {})) == 2 * len(shard(JOBS, 1, 3, {}))


@pytest.mark.parametrize("text", ["0/3", "4/3", "1", "a/b", "1/0", "-1/3", "1/3/5"])
def test_a_bad_shard_is_one_sentence(text: str) -> None:
    with pytest.raises(UsageError, match="write it as i/n"):
        parse_shard(text)


def test_a_shard_is_parsed() -> None:
    assert parse_shard("2/3") == (2, 3)


# -- the choice under a time limit -------------------------------------------------------------
def test_the_budget_holds_and_what_is_left_out_is_named() -> None:
    seconds = {key(job): 1.0 for job in JOBS}
    chosen, left_out = choose(JOBS, 20.0, seconds, {})
    assert len(chosen) == 20
    assert sorted(map(key, chosen + left_out)) == sorted(map(key, JOBS))


def test_with_time_for_all_nothing_is_left_out() -> None:
    chosen, left_out = choose(JOBS, 1e9, {}, {})
    assert len(chosen) == len(JOBS)
    assert left_out == []


def test_what_catches_most_per_second_comes_first() -> None:
    jobs = [Job(a_case(n), "k") for n in range(4)]
    table = {
        jobs[0].case.id: frozenset({"a"}),
        jobs[1].case.id: frozenset({"a", "b", "c"}),
        jobs[2].case.id: frozenset({"a", "b", "c", "d"}),  # catches most, but takes ten times as long
        jobs[3].case.id: frozenset({"b", "c"}),  # adds nothing to jobs[1]
    }
    seconds = {key(job): 10.0 if job is jobs[2] else 1.0 for job in jobs}
    chosen, left_out = choose(jobs, 11.0, seconds, table)
    assert chosen == [jobs[1], jobs[2]]
    assert left_out == [jobs[0], jobs[3]]


def test_each_adapter_is_to_be_caught_on_its_own() -> None:
    jobs = [Job(a_case(0), "k1"), Job(a_case(0), "k2")]
    chosen, _ = choose(jobs, 2.0, {key(job): 1.0 for job in jobs}, {a_case(0).id: frozenset({"a"})})
    assert len(chosen) == 2


def test_greedy_reaches_every_feature_in_a_fraction_of_the_time() -> None:
    jobs = [Job(record.case, "k") for record in many_records(300, adapters=("k",))]
    everything = frozenset().union(*(features(job.case) for job in jobs))
    chosen, _ = choose(jobs, 40.0, {key(job): 1.0 for job in jobs}, {})
    assert frozenset().union(*(features(job.case) for job in chosen)) == everything


def test_features_tell_a_window_that_bites_from_one_that_does_not() -> None:
    assert "window bites" in features(a_case(0, requests=(Request(20, 2),)))
    assert "window longer than all" in features(a_case(0, window_left=100))


def test_the_fault_table_is_read_and_a_broken_one_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    assert read_fault_table(path) == {}
    path.write_text(json.dumps({"fault_table_version": 1, "caught": {"f": ["x", "y"], "g": ["x"]}}))
    assert read_fault_table(path) == {"x": frozenset({"f", "g"}), "y": frozenset({"f"})}
    for text, said in (("[]", "no fault table"), ('{"fault_table_version": 7}', "fault_table_version 7")):
        path.write_text(text)
        with pytest.raises(UsageError, match=said):
            read_fault_table(path)
