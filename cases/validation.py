"""What a case may not be: refused where it is built, in one sentence that says what to change."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from enum import StrEnum
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

from cases.errors import CaseError
from cases.vocabulary import (
    DTYPES,
    INT32_LIMIT,
    KV_DTYPES,
    MIN_SPARE_PAGES,
    RECIPES,
    WORKSPACES,
    Execution,
    KvLayout,
    Mode,
    PageOrder,
    Poison,
    Request,
    pages_owned,
)

if TYPE_CHECKING:
    from cases.schema import AttentionCase

_E = TypeVar("_E", bound=StrEnum)

MOST_V_SCALE = 1e9  # and its inverse is the least


def _enum(kind: type[_E], value: object, where: str) -> _E:
    try:
        return kind(str(value))
    except ValueError:
        known = ", ".join(repr(str(v)) for v in kind)
        raise CaseError(f"{where} is {value!r}; use one of {known}.") from None


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _float(value: int | float) -> float:
    try:
        return float(value)
    except OverflowError:  # an integer past what a float holds; validation refuses infinity
        return math.inf


def _requests(value: object, where: str) -> tuple[Request, ...]:
    if not isinstance(value, (list, tuple)) or not value:
        raise CaseError(f"{where} is empty or no list; give at least one [prefix_len, extend_len].")
    if _plain(value):
        return tuple(value)
    rows = []
    for i, pair in enumerate(value):
        if not isinstance(pair, (list, tuple)) or len(pair) != 2 or not all(map(_is_int, pair)):
            # A Request of another length has no repr.
            shown = tuple(pair) if isinstance(pair, tuple) and len(pair) != 2 else pair
            raise CaseError(f"{where}[{i}] is {shown!r}; give two integers [prefix_len, extend_len].")
        if min(pair) < 0:
            raise CaseError(f"{where}[{i}] is {list(pair)}; lengths must not be negative.")
        if sum(pair) >= INT32_LIMIT:
            raise CaseError(f"{where}[{i}] is {list(pair)}; a request must stay below 2**31 keys.")
        rows.append(Request(*pair))
    return tuple(rows)


def _plain(rows: Sequence[Any]) -> bool:
    """Whether they are Requests as they should be: in few steps each, as a group that is merged has a thousand."""
    if set(map(type, rows)) != {Request} or set(map(len, rows)) != {2}:
        return False
    lengths = list(chain.from_iterable(rows))
    return set(map(type, lengths)) == {int} and min(lengths) >= 0 and max(map(sum, rows)) < INT32_LIMIT


def normalise(case: AttentionCase) -> None:
    """Accept lists and plain strings where tuples and enums are kept, so that equal means equal. Raises CaseError."""

    def put(name: str, value: object) -> None:
        object.__setattr__(case, name, value)

    put("requests", _requests(case.requests, "requests"))
    put("mode", _enum(Mode, case.mode, "mode"))
    put("page_order", _enum(PageOrder, case.page_order, "page_order"))
    put("kv_layout", _enum(KvLayout, case.kv_layout, "kv_layout"))
    put("poison", _enum(Poison, case.poison, "poison"))
    for name in ("k_scale", "v_scale", "logits_soft_cap", "sm_scale"):
        value = getattr(case, name)
        if value is None and name in ("k_scale", "v_scale"):
            raise CaseError(f"{name} is null; give a number.")
        if value is not None:
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise CaseError(f"{name} is {value!r}; give a number.")
            put(name, _float(value))
    if not isinstance(case.execution, Execution):
        raise CaseError(f"execution is {case.execution!r}; give an Execution.")
    if case.execution.capture_requests is not None:
        captured = _requests(case.execution.capture_requests, "execution.capture_requests")
        put("execution", dataclasses.replace(case.execution, capture_requests=captured))


def validate(case: AttentionCase) -> None:
    """Raises CaseError for the first rule that a normalised case breaks."""

    def refuse(condition: bool, sentence: str) -> None:
        if condition:
            raise CaseError(sentence)

    for name in ("num_qo_heads", "num_kv_heads", "head_dim_qk", "head_dim_vo", "page_size"):
        value = getattr(case, name)
        refuse(not _is_int(value) or value < 1, f"{name} is {value!r}; give a positive integer.")
        refuse(value >= INT32_LIMIT, f"{name} is {value}; it must be below 2**31.")
    refuse(
        case.num_qo_heads % case.num_kv_heads != 0,
        f"num_qo_heads {case.num_qo_heads} is no multiple of num_kv_heads {case.num_kv_heads}; "
        "change one so that it divides.",
    )
    refuse(case.total_q == 0, "no request has a new row; give at least one extend_len above 0.")
    refuse(
        case.mode is Mode.DECODE and case.max_extend_len > 1,
        f"mode is decode but a request extends by {case.max_extend_len}; use 1 (or mode extend).",
    )
    for name, known in (("dtype", DTYPES), ("kv_dtype", KV_DTYPES)):
        refuse(
            getattr(case, name) not in known,
            f"{name} is {getattr(case, name)!r}; use one of {', '.join(known)}.",
        )
    refuse(
        case.kv_dtype in DTYPES and case.kv_dtype != case.dtype,
        f"kv_dtype {case.kv_dtype} differs from dtype {case.dtype}; make them equal or use an fp8 kv_dtype.",
    )
    for name in ("causal", "sinks"):
        refuse(not isinstance(getattr(case, name), bool), f"{name} is {getattr(case, name)!r}; give true or false.")
    for name in ("k_scale", "v_scale", "logits_soft_cap", "sm_scale"):
        value = getattr(case, name)
        refuse(
            value is not None and not (math.isfinite(value) and value > 0),
            f"{name} is {value!r}; give a positive finite number{'' if name.startswith(('k_', 'v_')) else ' or null'}.",
        )
    # The squares of values, which error bounds are made of, are held in fp32.
    refuse(not 1 / MOST_V_SCALE <= case.v_scale <= MOST_V_SCALE, f"v_scale is {case.v_scale!r}; give 1e-9 to 1e9.")
    scaled = case.k_scale != 1.0 or case.v_scale != 1.0
    refuse(
        scaled and case.kv_dtype in DTYPES,
        f"k_scale and v_scale apply to an fp8 cache only; set them to 1 or kv_dtype {case.kv_dtype} to an fp8 type.",
    )
    for name in ("window_left", "pool_pages", "seed"):
        value = getattr(case, name)
        refuse(
            not (_is_int(value) and value >= 0) and not (value is None and name != "seed"),
            f"{name} is {value!r}; give an integer of 0 or more{'' if name == 'seed' else ' or null'}.",
        )
        refuse(
            name != "seed" and value is not None and value >= INT32_LIMIT,
            f"{name} is {value}; it must be below 2**31 (libraries keep it in an int32).",
        )
    refuse(case.seed >= 1 << 63, f"seed is {case.seed}; it must be below 2**63.")
    refuse(case.recipe not in RECIPES, f"recipe is {case.recipe!r}; use one of {', '.join(RECIPES)}.")
    _validate_execution(case, refuse)
    if case.pool_pages is None:
        return
    owned = sum(pages_owned(r, case.page_size) for r in case.requests)
    refuse(
        case.pool_pages < owned + MIN_SPARE_PAGES,
        f"pool_pages is {case.pool_pages} but the requests own {owned} pages and {MIN_SPARE_PAGES} must stay "
        f"spare; give {owned + MIN_SPARE_PAGES} or more, or null.",
    )


def _validate_execution(case: AttentionCase, refuse: Any) -> None:
    execution = case.execution
    splits = execution.num_splits
    refuse(
        splits is not None and (not _is_int(splits) or splits < 1),
        f"execution.num_splits is {splits!r}; give a positive integer or null.",
    )
    refuse(
        execution.workspace not in WORKSPACES,
        f"execution.workspace is {execution.workspace!r}; use one of {', '.join(WORKSPACES)}.",
    )
    captured = execution.capture_requests
    if captured is None:
        return
    refuse(
        len(captured) != case.num_requests,
        f"execution.capture_requests has {len(captured)} requests, the case {case.num_requests}; "
        "a graph is replayed on as many as it was captured for.",
    )
    refuse(
        max(r.extend_len for r in captured) < case.max_extend_len or sum(r.extend_len for r in captured) < case.total_q,
        "execution.capture_requests has fewer new rows than the case; a graph's query buffers are "
        "sized at capture, so capture at least as many.",
    )
