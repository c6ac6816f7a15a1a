"""Records that no kernel made, with the shape of real ones: for the gate's and the report's tests."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path

from cases import AttentionCase, Execution, Request
from cases.schema import Mode, PageOrder
from harness.record import Record, RecordWriter
from harness.verdict import Evidence, Verdict

VERSIONS = {"python": "3.11.9", "torch": "2.11.0+cu130", "flashinfer-python": "0.6.18"}
ADAPTERS = (
    "flashinfer-swa-merge",
    "flashinfer-paged-fa2",
    "flashinfer-paged-fa3",
    "flash-attn-4",
    "flash-attn-3",
    "torch-varlen",
)


def a_case(number: int = 0, **changes: object) -> AttentionCase:
    """A different small case for each number."""
    values: dict[str, object] = {"requests": (Request(3 + number, 2),), "window_left": 4}
    return AttentionCase(**(values | changes))  # type: ignore[arg-type]


def a_record(
    case: AttentionCase | int = 0,
    verdict: Verdict = Verdict.PASS,
    *,
    adapter: str = "flashinfer-swa-merge",
    error: float | None = 0.004,
    ratio: float | None = 0.4,
    residual: float | None = 0.03,
    certificate: bool | None = True,
    seconds: float = 0.05,
    **changes: object,
) -> Record:
    """A record with an atol, an LSE, a bound and a FLAT certificate in it. None leaves one out."""
    evidence = [Evidence("atol", error is not None and error < 0.02, {"atol": 0.02, "max_abs_diff": error})]
    evidence.append(Evidence("lse", True, {"max_lse_diff": 1e-5}))
    if ratio is not None:
        evidence.append(Evidence("bound", ratio <= 1, {"ratio": ratio}))
    if residual is not None:
        evidence.append(Evidence("certificate/flat", certificate, {"s_max": residual, "n_max": residual / 2}))
    record = Record(
        a_case(case) if isinstance(case, int) else case,
        adapter,
        verdict,
        suite="smoke",
        max_abs_diff=error,
        atol=0.02,
        evidence=tuple(evidence),
        poison="finite",
        versions=dict(VERSIONS),
        device="NVIDIA H200",
        seconds={"build": seconds / 4, "run": seconds / 4, "golden": seconds / 2, "total": seconds},
        time="2026-09-14T10:15:00+00:00",
    )
    return record.replace(**changes)


def a_finding(case: AttentionCase | int = 0, **changes: object) -> Record:
    """WRONG, with the words that a diagnosis gives."""
    values: dict[str, object] = {
        "error": 0.31,
        "ratio": 40.0,
        "certificate": False,
        "residual": 0.9,
        "reason": "request 0, query position 4, head 0 sees 5 keys, should see 4",
        "explanation": ("swa-merge-window-missing (window): neither leg applies the window",),
    }
    return a_record(case, Verdict.WRONG, **(values | changes))  # type: ignore[arg-type]


def write_records(path: Path, records: Iterable[Record]) -> Path:
    writer = RecordWriter(path)
    for record in records:
        writer.write(record)
    writer.close()
    return path


def many_records(count: int, seed: int = 0, adapters: tuple[str, ...] = ADAPTERS) -> list[Record]:
    """`count` records of a serving-like mix, about 1 % of them findings."""
    draw = random.Random(seed)
    records: list[Record] = []
    number = 0
    while len(records) < count:
        number += 1
        case = _drawn_case(draw, number)
        for adapter in adapters[: count - len(records)]:
            records.append(_drawn_record(draw, case, adapter))
    return records


def _drawn_case(draw: random.Random, number: int) -> AttentionCase:
    requests = tuple(
        Request(draw.choice((0, 5, 64, 300, 1023, 4096, 40_000)) + draw.randrange(8), 1 + draw.randrange(200))
        for _ in range(1 + draw.randrange(4))
    )
    mode = draw.choice((Mode.EXTEND, Mode.EXTEND, Mode.DRAFT_EXTEND_V2, Mode.TARGET_VERIFY))
    return AttentionCase(
        requests=requests,
        mode=mode,
        window_left=draw.choice((None, 2, 127, 1023)),
        logits_soft_cap=draw.choice((None, None, 30.0)),
        page_size=draw.choice((1, 16, 64)),
        page_order=draw.choice(list(PageOrder)),
        execution=Execution(capture_requests=requests if draw.random() < 0.1 else None),
        seed=number,
    )


def _drawn_record(draw: random.Random, case: AttentionCase, adapter: str) -> Record:
    roll = draw.random()
    if roll < 0.08:
        return a_record(
            case,
            Verdict.UNSUPPORTED,
            adapter=adapter,
            error=None,
            ratio=None,
            residual=None,
            reason=draw.choice(("no attention sinks", "no logits soft cap", "page size 1 is no multiple of 16")),
        )
    if roll < 0.10 and case.window_left is not None:
        return a_finding(case, adapter=adapter, error=draw.uniform(0.1, 0.9), ratio=draw.uniform(5, 90))
    if roll > 0.9985:
        return a_record(
            case,
            Verdict.CRASH,
            adapter=adapter,
            error=None,
            ratio=None,
            residual=None,
            reason="the worker died in run with signal SIGSEGV: CUDA error: an illegal memory access",
            versions={},
            device="",
        )
    return a_record(
        case,
        adapter=adapter,
        error=draw.lognormvariate(-5.6, 0.5),
        ratio=min(0.95, draw.lognormvariate(-0.9, 0.35)),
        residual=draw.uniform(0.0, 0.08),
        seconds=draw.lognormvariate(-3, 0.8),
    )
