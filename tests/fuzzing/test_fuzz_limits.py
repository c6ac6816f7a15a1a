"""What is drawn for an adapter is what it declares, and what only its rules know is mended."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from cases import AttentionCase, Mode, Poison
from cases.errors import CaseError
from cases.schema import Execution, KvLayout
from harness.adapters.capabilities import Capabilities
from harness.adapters.registry import available, load_adapter
from harness.errors import UsageError
from harness.fuzzing.drawing import cases_for
from harness.fuzzing.limits import Declaration, draw_limits, mend

RUNNABLE = [entry.name for entry in available() if entry.why_not is None and entry.name != "torch-flex"]


def declare(poison: Poison = Poison.NAN, **capabilities: Any) -> Declaration:
    return Declaration("mine", Capabilities(**capabilities), poison, has_rules=False)


@pytest.mark.parametrize("name", RUNNABLE)
def test_no_unsupported_case_is_drawn(name: str) -> None:
    adapter = load_adapter(name)
    declared = Declaration.from_json(Declaration.of(adapter).to_json())  # as a worker tells it
    drawn: list[AttentionCase] = []

    @given(cases_for(declared, "ci", lambda case: mend(case, adapter.capabilities)))
    @settings(
        max_examples=120,
        phases=[Phase.generate],
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    def collect(case: AttentionCase) -> None:
        drawn.append(case)

    collect()
    assert len(drawn) >= 110  # a rejected draw is drawn again, but many rejections would end the run early
    assert not [case.name for case in drawn if adapter.capabilities.unsupported(case)]


def test_a_declaration_survives_the_way_to_another_process() -> None:
    there = declare(modes=(Mode.DECODE,), kv_layouts=(KvLayout.HND,), head_dims=(128,), sinks=True)
    assert Declaration.from_json(there.to_json()) == there


def test_limits_follow_the_declaration() -> None:
    limits = draw_limits(
        declare(
            Poison.FINITE,
            modes=(Mode.EXTEND, Mode.DECODE),
            dtypes=("float32", "float16"),
            kv_dtypes=("float8_e4m3fn",),
            graph=True,
            head_dims=(192, 64, 512),
            page_size_multiple=16,
        )
    )
    assert limits.modes == (Mode.EXTEND, Mode.DECODE)
    assert limits.graph_modes == (Mode.DECODE,)
    assert limits.dtypes == ("float16",)
    assert limits.kv_dtypes == ("float8_e4m3fn",)
    assert limits.head_dims == (64, 192)  # 512 is above max_head_dim
    assert set(limits.page_sizes) == {16, 32, 64, 128, 256}
    assert Poison.NAN not in limits.poisons


def test_nothing_left_to_draw_is_one_sentence() -> None:
    with pytest.raises(UsageError, match=r"^nothing can be drawn for adapter mine: .*head_dims"):
        draw_limits(declare(head_dims=(1024,)))
    with pytest.raises(CaseError, match="no profile is called 'huge'"):
        cases_for(declare(), "huge", lambda case: case)


BASE = AttentionCase(requests=((5, 1), (3, 0)), window_left=2, num_qo_heads=4, num_kv_heads=2)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("case", "rule", "changed"),
    [
        (BASE.replace(execution=Execution(num_splits=7)), lambda c: c.execution.num_splits not in (None, 1), "splits"),
        (BASE, lambda c: any(r.extend_len == 0 for r in c.requests), "requests"),
        (BASE.replace(logits_soft_cap=2.0), lambda c: c.logits_soft_cap is not None, "cap"),
        (BASE, lambda c: c.group_size > 1, "heads"),
    ],
)
def test_mending_changes_one_thing(case: AttentionCase, rule: Any, changed: str) -> None:
    mended = mend(case, Capabilities(num_splits=True, rules=(lambda c: "no" if rule(c) else None,)))
    assert mended is not None
    assert not rule(mended)
    differs = {
        "splits": case.execution != mended.execution,
        "requests": case.requests != mended.requests,
        "cap": case.logits_soft_cap != mended.logits_soft_cap,
        "heads": case.num_qo_heads != mended.num_qo_heads,
    }
    assert [name for name, yes in differs.items() if yes] == [changed]
    assert mended.window_left == 2


def test_what_cannot_be_mended_is_none() -> None:
    assert mend(BASE, Capabilities(rules=(lambda case: "never",))) is None
