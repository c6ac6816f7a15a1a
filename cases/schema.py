"""The case: a frozen, JSON-serialisable description of one attention call.

A case holds no tensors. Its data follow from `recipe` and `seed` alone, so the same case gives the
same input bits on every machine and device. Invalid combinations are refused here, where the case
is built, so that nothing downstream has to guess what was meant.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple, TypeVar

from cases.errors import CaseError
from cases.naming import readable_name

SCHEMA_VERSION = 1


class Mode(StrEnum):
    """How a serving engine came to make the call; the visibility rule is the same for all."""

    EXTEND = "extend"
    DRAFT_EXTEND_V2 = "draft_extend_v2"
    DECODE = "decode"
    TARGET_VERIFY = "target_verify"


class PageOrder(StrEnum):
    """How logical pages map to the pool: position k of a request is in its page k // page_size."""

    CONTIGUOUS = "contiguous"
    REVERSED = "reversed"
    SHUFFLED = "shuffled"
    INTERLEAVED = "interleaved"  # pages dealt out to the requests in turn
    FAR_END = "far_end"  # contiguous, at the end of the pool (see `pool_pages`)


class Poison(StrEnum):
    """What the slots hold that nobody may read, weakest first."""

    ZERO = "zero"
    FINITE = "finite"
    NAN = "nan"

    @property
    def strength(self) -> int:
        return list(Poison).index(self)

    def weaker(self, other: Poison) -> Poison:
        return min(self, other, key=lambda level: level.strength)


class KvLayout(StrEnum):
    """Order of the dimensions within a page: [page_size, heads, dim] or [heads, page_size, dim]."""

    NHD = "NHD"
    HND = "HND"


class Request(NamedTuple):
    """One sequence of the batch: `prefix_len` keys in the cache, `extend_len` new rows after them."""

    prefix_len: int
    extend_len: int

    @property
    def kv_len(self) -> int:
        return self.prefix_len + self.extend_len


DTYPES = ("bfloat16", "float16", "float32")
KV_DTYPES = (*DTYPES, "float8_e4m3fn", "float8_e5m2")
WORKSPACES = ("clean", "dirty")
RECIPES = ("normal", "small", "spiky", "sunken")  # written out in cases/recipes.py
INT32_LIMIT = 1 << 31


@dataclass(frozen=True, slots=True)
class Execution:
    """How the call is launched.

    `capture_requests` (None: eager) are the requests a CUDA graph is captured for before it is
    replayed on the case's own. `num_splits` (None: the library's heuristic) is the split-kv count.
    `workspace` "dirty" fills scratch buffers with NaN bytes before the call.
    """

    capture_requests: tuple[Request, ...] | None = None
    num_splits: int | None = None
    workspace: str = "clean"

    @property
    def uses_graph(self) -> bool:
        return self.capture_requests is not None


@dataclass(frozen=True, slots=True)
class AttentionCase:
    """One attention call: requests, heads, masks, cache layout, execution and data recipe.

    `window_left` = L: a query at absolute position q sees keys max(0, q-L)..q, which is L+1 keys
    (None: no window). `sm_scale` None means 1/sqrt(head_dim_qk). `pool_pages` None means a pool
    just larger than what the requests own.
    """

    requests: tuple[Request, ...]
    mode: Mode = Mode.EXTEND
    num_qo_heads: int = 8
    num_kv_heads: int = 2
    head_dim_qk: int = 64
    head_dim_vo: int = 64
    dtype: str = "bfloat16"
    kv_dtype: str = "bfloat16"
    k_scale: float = 1.0
    v_scale: float = 1.0
    causal: bool = True
    window_left: int | None = None
    logits_soft_cap: float | None = None
    sinks: bool = False
    sm_scale: float | None = None
    page_size: int = 16
    page_order: PageOrder = PageOrder.SHUFFLED
    pool_pages: int | None = None
    kv_layout: KvLayout = KvLayout.NHD
    poison: Poison = Poison.FINITE
    execution: Execution = field(default_factory=Execution)
    recipe: str = "normal"
    seed: int = 0

    def __post_init__(self) -> None:
        _normalise(self)
        _validate(self)

    # -- sizes ---------------------------------------------------------------------------------
    @property
    def num_requests(self) -> int:
        return len(self.requests)

    @property
    def total_q(self) -> int:
        return sum(r.extend_len for r in self.requests)

    @property
    def total_kv(self) -> int:
        return sum(r.kv_len for r in self.requests)

    @property
    def max_extend_len(self) -> int:
        return max(r.extend_len for r in self.requests)

    @property
    def max_kv_len(self) -> int:
        return max(r.kv_len for r in self.requests)

    @property
    def group_size(self) -> int:
        return self.num_qo_heads // self.num_kv_heads

    @property
    def scale(self) -> float:
        return self.head_dim_qk**-0.5 if self.sm_scale is None else self.sm_scale

    # -- identity ------------------------------------------------------------------------------
    def to_json(self) -> dict[str, Any]:
        """Plain JSON values, every field written out."""
        body: dict[str, Any] = {"schema_version": SCHEMA_VERSION}
        for f in dataclasses.fields(self):
            value = getattr(self, f.name)
            body[f.name] = str(value) if isinstance(value, StrEnum) else value
        body["requests"] = [list(r) for r in self.requests]
        captured = self.execution.capture_requests
        body["execution"] = {
            "capture_requests": None if captured is None else [list(r) for r in captured],
            "num_splits": self.execution.num_splits,
            "workspace": self.execution.workspace,
        }
        return body

    def canonical(self) -> str:
        """The text that the id is a hash of: sorted keys, no white space, ASCII."""
        return json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"), allow_nan=False)

    @property
    def id(self) -> str:
        """Twelve hex digits, the same on every machine."""
        return _case_id(self)

    @property
    def name(self) -> str:
        """A readable name: what is unusual about the case, not every field; the id tells it apart."""
        return readable_name(self)

    def replace(self, **changes: Any) -> AttentionCase:
        return dataclasses.replace(self, **changes)

    @staticmethod
    def from_json(body: object) -> AttentionCase:
        """The exact inverse of `to_json`. Raises CaseError on unknown fields and future versions."""
        return _from_json(body)


@functools.lru_cache(maxsize=1 << 14)
def _case_id(case: AttentionCase) -> str:
    # Kept, because records are sorted and looked up by it: equal cases have equal canonical text.
    return hashlib.sha256(case.canonical().encode()).hexdigest()[:12]


# -- validation --------------------------------------------------------------------------------
_E = TypeVar("_E", bound=StrEnum)


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
    rows = []
    for i, pair in enumerate(value):
        if not isinstance(pair, (list, tuple)) or len(pair) != 2 or not all(map(_is_int, pair)):
            raise CaseError(f"{where}[{i}] is {pair!r}; give two integers [prefix_len, extend_len].")
        if min(pair) < 0:
            raise CaseError(f"{where}[{i}] is {list(pair)}; lengths must not be negative.")
        if sum(pair) >= INT32_LIMIT:
            raise CaseError(f"{where}[{i}] is {list(pair)}; a request must stay below 2**31 keys.")
        rows.append(Request(*pair))
    return tuple(rows)


def _normalise(case: AttentionCase) -> None:
    """Accept lists and plain strings where tuples and enums are kept, so that equal means equal."""

    def put(name: str, value: object) -> None:
        object.__setattr__(case, name, value)

    put("requests", _requests(case.requests, "requests"))
    put("mode", _enum(Mode, case.mode, "mode"))
    put("page_order", _enum(PageOrder, case.page_order, "page_order"))
    put("kv_layout", _enum(KvLayout, case.kv_layout, "kv_layout"))
    put("poison", _enum(Poison, case.poison, "poison"))
    for name in ("k_scale", "v_scale", "logits_soft_cap", "sm_scale"):
        value = getattr(case, name)
        if value is not None:
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise CaseError(f"{name} is {value!r}; give a number.")
            put(name, _float(value))
    if not isinstance(case.execution, Execution):
        raise CaseError(f"execution is {case.execution!r}; give an Execution.")
    if case.execution.capture_requests is not None:
        captured = _requests(case.execution.capture_requests, "execution.capture_requests")
        put("execution", dataclasses.replace(case.execution, capture_requests=captured))


def _validate(case: AttentionCase) -> None:
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
    owned = sum(pages_owned(r, case.page_size) for r in case.requests)
    refuse(
        case.pool_pages is not None and case.pool_pages < owned + MIN_SPARE_PAGES,
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


MIN_SPARE_PAGES = 2  # pages that no request owns: they are what a wrong page index would read


def pages_owned(request: Request, page_size: int) -> int:
    """Pages that a request holds: its keys, and `extend_len` slots more, as an engine allocates ahead.

    The slots past the keys stay stale; they make "read too far" a wrong answer, not a crash.
    """
    return -(-(request.kv_len + request.extend_len) // page_size)


# -- JSON --------------------------------------------------------------------------------------
def _from_json(body: object) -> AttentionCase:
    if not isinstance(body, Mapping):
        raise CaseError(f"a case is a JSON object, not {type(body).__name__}; see `attn-harness list schema`.")
    version = body.get("schema_version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise CaseError(f"schema_version is {version!r}; this release reads version {SCHEMA_VERSION}.")
    if version > SCHEMA_VERSION:
        raise CaseError(f"schema_version is {version}, this release reads up to {SCHEMA_VERSION}; update attn-harness.")
    fields = {f.name for f in dataclasses.fields(AttentionCase)}
    _refuse_unknown(set(body) - fields - {"schema_version"}, "the case")
    if "requests" not in body:
        raise CaseError('the case has no requests; add "requests": [[prefix_len, extend_len], ...].')
    values = {name: body[name] for name in fields & set(body)}
    if "execution" in values:
        execution = values["execution"]
        if not isinstance(execution, Mapping):
            raise CaseError(f"execution is {execution!r}; give an object.")
        _refuse_unknown(set(execution) - {f.name for f in dataclasses.fields(Execution)}, "execution")
        values["execution"] = Execution(**execution)
    return AttentionCase(**values)


def _refuse_unknown(names: set[Any], where: str) -> None:
    if names:
        shown = sorted(str(name) if str(name).isprintable() else repr(name) for name in names)
        raise CaseError(f"{where} has unknown fields {', '.join(shown)}; remove them.")
