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
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from cases.errors import CaseError
from cases.naming import readable_name
from cases.validation import normalise, validate
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

__all__ = [
    "DTYPES",
    "INT32_LIMIT",
    "KV_DTYPES",
    "MIN_SPARE_PAGES",
    "RECIPES",
    "SCHEMA_VERSION",
    "WORKSPACES",
    "AttentionCase",
    "Execution",
    "KvLayout",
    "Mode",
    "PageOrder",
    "Poison",
    "Request",
    "pages_owned",
]

SCHEMA_VERSION = 1


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
        normalise(self)
        validate(self)

    # -- sizes ---------------------------------------------------------------------------------
    @property
    def num_requests(self) -> int:
        return len(self.requests)

    @property
    def total_q(self) -> int:
        return sum(r.extend_len for r in self.requests)

    @property
    def total_kv(self) -> int:
        return sum(map(sum, self.requests))

    @property
    def max_extend_len(self) -> int:
        return max(r.extend_len for r in self.requests)

    @property
    def max_kv_len(self) -> int:
        return max(map(sum, self.requests))

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


# -- JSON --------------------------------------------------------------------------------------
def _from_json(body: object) -> AttentionCase:
    if not isinstance(body, Mapping):
        raise CaseError(f"a case is a JSON object, not {type(body).__name__}; see `attn-harness list schema`.")
    if "schema_version" not in body:
        raise CaseError(f'the case has no schema_version; add "schema_version": {SCHEMA_VERSION}.')
    version = body["schema_version"]
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
