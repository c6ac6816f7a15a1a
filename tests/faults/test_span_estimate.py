"""FlashInfer fa2's chunks under a window that is not causal: the formula against what an H200 did, and its name."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cases.corpus_io import read_case_json
from cases.schema import AttentionCase, Execution, Request
from harness.diagnosis.explaining import explain
from harness.faults.catalogue.span_estimate import chunks_of
from harness.faults.registry import load_fault
from harness.faults.shots import Range
from harness.record import Record
from harness.verdict import Verdict

FAULT = load_fault("bidirectional-window-chunks-short")
FA2, MERGE = "flashinfer-paged-fa2@emulated", "flashinfer-swa-merge@emulated"
FINDING = Path(__file__).parents[2] / "reports" / "findings" / "flashinfer-window-not-causal" / "case.json"


def case_of(requests: list[tuple[int, int]], left: int, heads: str = "1x1h64", page: int = 1) -> AttentionCase:
    qo, rest = heads.split("x")
    kv, dim = rest.split("h")
    return AttentionCase(
        requests=tuple(Request(*request) for request in requests),
        num_qo_heads=int(qo),
        num_kv_heads=int(kv),
        head_dim_qk=int(dim),
        head_dim_vo=int(dim),
        causal=False,
        window_left=left,
        page_size=page,
    )


# Rows of all kv heads, heads of a group apart, to which certificates saw keys missing: flashinfer-python 0.6.18.post1
# on an H200; the last is the shape of flashinfer #4972, which says rows 0..127 of each head.
SEEN = [
    (case_of([(120, 137)], 120), 128),
    (case_of([(119, 137)], 120), 0),
    (case_of([(120, 136)], 120), 0),
    (case_of([(120, 137)], 119), 0),
    (case_of([(248, 137)], 254), 128),
    (case_of([(247, 137)], 254), 0),
    (case_of([(120, 137)], 254), 0),
    (case_of([(248, 137)], 126), 128),
    (case_of([(248, 137)], 119), 0),
    (case_of([(145, 112)], 145, "1x1h256"), 64),
    (case_of([(145, 112)], 144, "1x1h256"), 0),
    (case_of([(145, 112)], 145, "1x1h128"), 0),
    (case_of([(227, 112)], 153, "12x2h256", 64), 128),
    (case_of([(0, 89), (255, 137)], 254, page=64), 128),
    (case_of([(130, 89), (255, 137), (320, 2), (0, 1)], 254, page=64), 64),
    (case_of([(3796, 300)], 333, "8x2h128", 16), 128 * 8),
]


def lost(case: AttentionCase) -> int:
    """Rows and heads that lose a key by the formula."""
    left = case.window_left
    assert left is not None
    chunks = chunks_of(
        [r.extend_len for r in case.requests],
        [-(-r.kv_len // case.page_size) for r in case.requests],
        page_size=case.page_size,
        num_qo_heads=case.num_qo_heads,
        num_kv_heads=case.num_kv_heads,
        head_dim=case.head_dim_vo,
        window_left=left,
    )
    if chunks is None:
        return 0
    short = 0
    for i, (prefix, extend) in enumerate(case.requests):
        reach = chunks.reach(i, torch.arange(prefix, prefix + extend), case.group_size, left)
        short += int((reach < prefix + extend).sum())
    return short * case.num_kv_heads


@pytest.mark.parametrize(("case", "rows"), SEEN, ids=lambda value: value.name if hasattr(value, "name") else str(value))
def test_the_formula_gives_what_the_gpu_did(case: AttentionCase, rows: int) -> None:
    assert lost(case) == rows
    assert (FAULT.blind(case) is None) == (rows > 0)


def test_what_was_seen_is_named_and_what_reaches_is_right() -> None:
    range_ = Range()
    examiner = range_.examiner(read_case_json(FINDING)[0], FA2, FAULT)
    told = explain(examiner, Record(examiner.case, FA2, Verdict.WRONG), range_=range_)
    assert told.fault == FAULT.name
    for case in (
        SEEN[1][0],
        examiner.case.replace(execution=Execution(num_splits=1)),
        examiner.case.replace(causal=True),
    ):
        shot = range_.shoot(case, FA2, FAULT)
        assert shot is not None
        assert not shot.fired, case.name


def test_the_ragged_leg_is_planned_alike() -> None:
    case = case_of([(3, 257)], 100)
    shot = Range().shoot(case, MERGE, FAULT)
    assert FAULT.blind(case) is None
    assert shot is not None
    assert shot.fired


def test_heads_of_one_row_may_lie_in_two_tiles() -> None:
    chunks = chunks_of([60], [400], page_size=1, num_qo_heads=5, num_kv_heads=1, head_dim=64, window_left=200)
    assert chunks is not None
    assert chunks.tile == 128
    reach = chunks.reach(0, torch.arange(340, 400), 5, 200)
    first, second = reach[:3, 25], reach[3:, 25]  # packed rows 125..127 and 128, 129
    assert (first == 140 + 3 * 128).all()
    assert (second == 140 + 25 + 3 * 128).all()
