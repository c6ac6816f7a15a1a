"""What Hypothesis leaves is simplified once more, as a case and not as a sequence of draws.

Where one draw decides whether another is made (a window, a page size with lengths on its edges), lowering
the first shifts the rest, and the shrinker of draws stays in a local minimum that is none of cases.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

from cases.errors import CaseError
from cases.schema import AttentionCase, Execution, KvLayout, Mode, PageOrder, Poison, Request

SIMPLEST = {
    "execution": Execution(),
    "mode": Mode.EXTEND,
    "window_left": None,
    "logits_soft_cap": None,
    "sinks": False,
    "causal": True,
    "sm_scale": None,
    "dtype": "bfloat16",
    "pool_pages": None,
    "page_order": PageOrder.CONTIGUOUS,
    "kv_layout": KvLayout.NHD,
    "poison": Poison.FINITE,
    "recipe": "normal",
    "seed": 0,
}
HEAD_DIM = 64
SMALL_PAGES = (2, 3, 4, 8)


def simpler_cases(case: AttentionCase) -> Iterator[AttentionCase]:
    """Cases that have less to them than `case`, the largest steps first. Each is smaller in some way for good."""
    for make in (_fewer_requests, _plainer_fields, _smaller_pages, _shorter):
        for changes in make(case):
            try:
                yield case.replace(**changes)
            except CaseError:  # a pool too small, a graph captured for too little: no case at all
                continue


Changes = dict[str, object]


def _captured(case: AttentionCase, keep: Callable[[tuple[Request, ...]], tuple[Request, ...]]) -> Execution:
    captured = case.execution.capture_requests
    if captured is None:
        return case.execution
    return dataclasses.replace(case.execution, capture_requests=keep(captured))


def _fewer_requests(case: AttentionCase) -> Iterator[Changes]:
    for i in range(case.num_requests if case.num_requests > 1 else 0):

        def without(requests: tuple[Request, ...], i: int = i) -> tuple[Request, ...]:
            return requests[:i] + requests[i + 1 :]

        yield {"requests": without(case.requests), "execution": _captured(case, without)}


def _plainer_fields(case: AttentionCase) -> Iterator[Changes]:
    for name, value in SIMPLEST.items():
        if getattr(case, name) != value:
            yield {name: value}
    if case.page_order not in (PageOrder.CONTIGUOUS, PageOrder.REVERSED):
        yield {"page_order": PageOrder.REVERSED, "pool_pages": None}  # out of order already with two pages
    execution = case.execution
    for name, value in (("num_splits", None), ("workspace", "clean"), ("capture_requests", None)):
        if getattr(execution, name) != value:
            yield {"execution": dataclasses.replace(execution, **{name: value})}  # type: ignore[arg-type]
    if case.kv_dtype != case.dtype:
        yield {"kv_dtype": case.dtype, "k_scale": 1.0, "v_scale": 1.0}
    if case.num_kv_heads > 1:
        yield {"num_kv_heads": 1, "num_qo_heads": case.group_size}
    if case.num_kv_heads > 2:
        yield {"num_kv_heads": 2, "num_qo_heads": 2 * case.group_size}
    if case.group_size > 1:
        yield {"num_qo_heads": case.num_kv_heads}
    if case.group_size > 2:
        yield {"num_qo_heads": 2 * case.num_kv_heads}
    if HEAD_DIM not in (case.head_dim_qk, case.head_dim_vo) or case.head_dim_qk != case.head_dim_vo:
        yield {"head_dim_qk": HEAD_DIM, "head_dim_vo": HEAD_DIM}


def _smaller_pages(case: AttentionCase) -> Iterator[Changes]:
    """A smaller page, with every length in the same place of its page."""
    size = case.page_size
    if size == 1:
        return
    yield {"page_size": 1}
    for small in (n for n in SMALL_PAGES if n < size):

        def scaled(length: int, small: int = small) -> int:
            past = length % size
            # One short of the edge stays one short of it.
            return length // size * small + (small - (size - past) if past > size // 2 else min(past, small - 1))

        def every(requests: tuple[Request, ...], scaled: Callable[[int], int] = scaled) -> tuple[Request, ...]:
            ends = [scaled(r.kv_len) for r in requests]
            prefixes = [min(max(0, scaled(r.prefix_len)), max(0, end)) for r, end in zip(requests, ends, strict=True)]
            return tuple(
                Request(p, max(end - p, min(1, r.extend_len)) if r.extend_len else 0)
                for r, p, end in zip(requests, prefixes, ends, strict=True)
            )

        yield {"page_size": small, "requests": every(case.requests), "execution": _captured(case, every)}


def _half(length: int) -> int:
    return length // 2


def _one_less(length: int) -> int:
    return length - 1


def _shorter(case: AttentionCase) -> Iterator[Changes]:
    """One length, or the window with the lengths that reach past it, halved or one less."""
    window = case.window_left
    for less in (_half, _one_less):
        if window:
            by = window - less(window)
            shifted = tuple(Request(max(0, r.prefix_len - by), r.extend_len) for r in case.requests)
            yield {"window_left": less(window)}
            yield {"window_left": less(window), "requests": shifted}
        for i, request in enumerate(case.requests):
            for prefix, extend in (
                (less(request.prefix_len) if request.prefix_len else -1, request.extend_len),
                (request.prefix_len, less(request.extend_len) if request.extend_len > 1 else -1),
            ):
                if min(prefix, extend) >= 0:
                    requests = (*case.requests[:i], Request(prefix, extend), *case.requests[i + 1 :])
                    yield {"requests": requests}
    captured = case.execution.capture_requests or ()
    for i, request in enumerate(captured):
        if request.prefix_len:
            shorter = (*captured[:i], Request(request.prefix_len // 2, request.extend_len), *captured[i + 1 :])
            yield {"execution": dataclasses.replace(case.execution, capture_requests=shorter)}


def polish(case: AttentionCase, fails: Callable[[AttentionCase], bool], steps: int = 200) -> AttentionCase:
    """The first simpler case that still `fails`, and so on until none does, or `steps` were tried."""
    current, tried = case, {case}
    while steps > 0:
        for simpler in simpler_cases(current):
            if simpler in tried or steps <= 0:
                continue
            tried.add(simpler)
            steps -= 1
            if fails(simpler):
                current = simpler
                break
        else:
            return current
    return current
