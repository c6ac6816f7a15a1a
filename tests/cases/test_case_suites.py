"""The named suites: what they promise to hold, and that they stay small enough to run."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import pytest

from cases import CaseError, Mode, PageOrder, Poison
from cases.schema import AttentionCase, KvLayout
from cases.suites import SUITES, load_suite

MAIN = ("seeds", "smoke", "model-zoo")


def _main_cases() -> list[AttentionCase]:
    return [built for name in MAIN for built in load_suite(name)]


def test_an_unknown_suite_is_one_sentence() -> None:
    with pytest.raises(CaseError) as refusal:
        load_suite("smok")
    assert str(refusal.value) == (
        "no suite is called 'smok'; use one of quick, smoke, seeds, model-zoo, model-zoo-large, long-context, corpus."
    )


def test_no_case_is_listed_twice() -> None:
    """quick repeats smoke, and a corpus trigger may be a case of a suite; nothing else repeats."""
    ids = Counter(built.id for name in SUITES if name not in ("quick", "corpus") for built in load_suite(name))
    assert [key for key, count in ids.items() if count > 1] == []


@pytest.mark.parametrize("name", SUITES)
def test_every_case_says_its_edge(name: str) -> None:
    suite = SUITES[name]
    assert suite.cases()
    assert all(edge.strip() for edge in suite.edges().values())
    assert len(suite.edges()) == len(suite.cases())
    edges = [row.edge for row in suite.rows()]
    assert len(set(edges)) == len(edges)


def test_quick_is_twelve_cases_of_smoke() -> None:
    assert len(load_suite("quick")) == 12
    assert set(load_suite("quick")) <= set(load_suite("smoke"))


def test_an_adapter_with_few_features_still_has_150_cases() -> None:
    """FlashInfer's limits: no graph, sinks, set split count, other layouts or head dims."""

    def plain(built: AttentionCase) -> bool:
        return (
            not built.execution.uses_graph
            and built.execution.num_splits is None
            and not built.sinks
            and built.causal
            and built.kv_layout is KvLayout.NHD
            and built.dtype == built.kv_dtype != "float32"
            and built.head_dim_qk == built.head_dim_vo
            and built.head_dim_qk in (64, 128, 256)
        )

    supported = [built for built in _main_cases() if plain(built)]
    assert len(supported) >= 150
    modules = {
        (built.dtype, built.head_dim_qk, built.window_left is None, built.logits_soft_cap is None)
        for built in supported
    }
    assert len(modules) <= 10  # each is a module that FlashInfer compiles


def test_main_suites_stay_cheap_on_a_cpu() -> None:
    """About two seconds of fp64 reference on one core: 2e7 scores and 2e7 elements of k and v."""
    for built in _main_cases():
        scores = sum(r.extend_len * r.kv_len for r in built.requests) * built.num_qo_heads
        elements = built.total_kv * built.num_kv_heads * (built.head_dim_qk + built.head_dim_vo)
        assert scores <= 2e7, built.name
        assert elements <= 2e7, built.name


def test_smoke_stands_on_every_edge_of_the_semantics() -> None:
    smoke = load_suite("smoke")

    def some(condition: object) -> bool:
        assert callable(condition)
        return any(condition(built) for built in smoke)

    lengths = {n for built in smoke for r in built.requests for n in (r.prefix_len, r.extend_len, r.kv_len)}
    assert {1, 15, 16, 17, 63, 64, 65, 127, 128, 129, 255, 256, 257} <= lengths
    assert {built.page_size for built in smoke} >= {1, 16, 64, 128, 256}
    assert {built.page_order for built in smoke} == set(PageOrder)
    assert {built.poison for built in smoke} == set(Poison)
    assert {built.kv_layout for built in smoke} == set(KvLayout)
    assert {built.mode for built in smoke} == set(Mode)
    assert {built.group_size for built in smoke} >= {1, 4, 7, 8, 16}
    assert {built.head_dim_qk for built in smoke} >= {64, 128, 256}
    assert {built.recipe for built in smoke} == {"normal", "small", "spiky"}
    assert {built.window_left for built in smoke} >= {0, 1, 31, 63, 127}
    for extend_over_window in (1, 2):  # at the last extend that fits, and one row more
        assert some(lambda c, n=extend_over_window: c.window_left and c.max_extend_len == c.window_left + n)
    assert some(lambda c: c.window_left and c.window_left > c.max_kv_len)
    assert some(lambda c: c.window_left and c.window_left + 1 == c.max_kv_len)
    assert some(lambda c: c.logits_soft_cap and c.logits_soft_cap <= 2)
    assert some(lambda c: c.sinks and c.window_left is not None)
    assert some(lambda c: any(r.extend_len == 0 for r in c.requests))
    assert some(lambda c: c.head_dim_qk != c.head_dim_vo)
    assert some(lambda c: not c.causal)
    assert some(lambda c: c.kv_dtype.startswith("float8") and c.k_scale != 1)
    assert some(lambda c: c.execution.workspace == "dirty")
    assert some(lambda c: c.execution.num_splits)
    assert some(lambda c: c.execution.uses_graph)
    assert some(lambda c: c.pool_pages and c.pool_pages > 1000)


def test_seeds_hold_the_reported_shapes() -> None:
    seeds = load_suite("seeds")
    extends = {(built.requests, built.window_left) for built in seeds if built.mode is Mode.EXTEND}
    reported = [
        (((3, 2), (4, 2), (5, 2)), 4),
        (((40, 5), (100, 3), (8, 8)), 31),
        (((40, 50), (100, 70)), 31),
        (((0, 70),), 31),
        (((0, 20), (50, 4)), 31),
        (((300, 4), (5, 4), (64, 4), (17, 4)), 31),
    ]
    for requests, window in reported:
        assert (requests, window) in extends
    graphs = [built for built in seeds if built.execution.capture_requests is not None]
    assert all(built.mode is Mode.DRAFT_EXTEND_V2 for built in graphs)

    def longest(requests: object) -> int:
        assert isinstance(requests, tuple)
        return max(r.kv_len for r in requests)

    longer = {longest(built.execution.capture_requests) > built.max_kv_len for built in graphs}
    assert longer == {True, False}  # captured for longer kv than replayed, and for shorter
    assert {built.page_size for built in seeds} >= {1, 16, 64}
    assert {(built.dtype, built.head_dim_qk) for built in seeds} == {
        ("bfloat16", 64),
        ("bfloat16", 128),
        ("float16", 64),
    }


def test_long_context_is_long() -> None:
    windows = {built.window_left for built in load_suite("long-context")}
    assert windows >= {None, 1024, 65535}
    assert max(built.max_kv_len for built in load_suite("long-context")) >= 131072


def test_suites_need_no_hypothesis() -> None:
    """A kernel worker may live in an environment without it."""
    code = (
        "import sys; sys.modules['hypothesis'] = None; import cases.suites as s; "
        "print(sum(len(x.cases()) for x in s.SUITES.values()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 200
