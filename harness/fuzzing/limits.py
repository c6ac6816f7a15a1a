"""From what an adapter declares to what is drawn for it, so that no time is spent on UNSUPPORTED cases.

Workers import this, so it needs no hypothesis.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cases.draw_limits import HEAD_DIMS, PAGE_SIZES, DrawLimits
from cases.errors import CaseError
from cases.schema import DTYPES, KV_DTYPES, AttentionCase, Execution, KvLayout, Mode, Poison, Request
from harness.adapters.capabilities import Capabilities
from harness.adapters.protocol import Adapter
from harness.errors import UsageError

GRAPH_MODES = (Mode.DRAFT_EXTEND_V2, Mode.DECODE, Mode.TARGET_VERIFY)  # what engines replay graphs for
FP8 = tuple(dtype for dtype in KV_DTYPES if dtype not in DTYPES)
POISONS = (Poison.FINITE, Poison.ZERO, Poison.NAN)


@dataclass(frozen=True, slots=True)
class Declaration:
    """What an adapter declares about the cases that it takes, as far as it can be told to another process.

    capabilities: without their rules, which are functions
    has_rules:    True if only the adapter's own process can tell whether a case is taken
    """

    name: str
    capabilities: Capabilities
    poison: Poison
    has_rules: bool

    @staticmethod
    def of(adapter: Adapter) -> Declaration:
        capabilities = adapter.capabilities
        plain = dataclasses.replace(capabilities, rules=())
        return Declaration(adapter.name, plain, adapter.poison, bool(capabilities.rules))

    def to_json(self) -> dict[str, Any]:
        fields = dataclasses.asdict(self.capabilities)
        del fields["rules"]
        return {"name": self.name, "capabilities": fields, "poison": str(self.poison), "has_rules": self.has_rules}

    @staticmethod
    def from_json(body: dict[str, Any]) -> Declaration:
        fields: dict[str, Any] = {
            name: tuple(v) if isinstance(v, list) else v for name, v in body["capabilities"].items()
        }
        fields["modes"] = tuple(map(Mode, fields["modes"]))
        fields["kv_layouts"] = tuple(map(KvLayout, fields["kv_layouts"]))
        return Declaration(body["name"], Capabilities(**fields), Poison(body["poison"]), body["has_rules"])


def draw_limits(declared: Declaration) -> DrawLimits:
    """The limits that an adapter's capabilities and poison level leave. Raises UsageError if nothing is left."""
    caps = declared.capabilities
    try:
        return DrawLimits(
            modes=tuple(mode for mode in Mode if mode in caps.modes),
            dtypes=tuple(dtype for dtype in caps.dtypes if dtype != "float32") or caps.dtypes,
            kv_dtypes=tuple(dtype for dtype in FP8 if dtype in (caps.kv_dtypes or ())),
            window=caps.window,
            softcap=caps.softcap,
            sinks=caps.sinks,
            bidirectional=caps.bidirectional,
            graph_modes=tuple(mode for mode in GRAPH_MODES if mode in caps.modes) if caps.graph else (),
            num_splits=caps.num_splits,
            head_dims=_head_dims(caps),
            head_dim_vo_differs=caps.head_dim_vo_differs,
            page_sizes=_page_sizes(caps),
            kv_layouts=caps.kv_layouts,
            empty_extends=caps.empty_extends,
            # A stronger level than the adapter promises is lowered to it: the same case, drawn twice.
            poisons=tuple(level for level in POISONS if level.strength <= declared.poison.strength),
        )
    except CaseError as problem:
        raise UsageError(f"nothing can be drawn for adapter {declared.name}: {problem}") from None


def _head_dims(caps: Capabilities) -> tuple[int, ...]:
    known = HEAD_DIMS if caps.head_dims is None else caps.head_dims
    fitting = [dim for dim in known if dim <= caps.max_head_dim and dim % caps.head_dim_multiple == 0]
    return tuple(sorted(fitting, key=lambda dim: HEAD_DIMS.index(dim) if dim in HEAD_DIMS else len(HEAD_DIMS)))


def _page_sizes(caps: Capabilities) -> tuple[int, ...]:
    multiple = caps.page_size_multiple
    return tuple(size for size in PAGE_SIZES if size % multiple == 0) or (multiple, 2 * multiple)


# -- what no field of the limits says -------------------------------------------------------------
Mend = Callable[[AttentionCase], AttentionCase]


def _execution(**changes: object) -> Mend:
    return lambda case: case.replace(execution=dataclasses.replace(case.execution, **changes))  # type: ignore[arg-type]


def _without(unwanted: Callable[[Request], bool]) -> Mend:
    """Drops requests, with what the graph was captured for in their places."""

    def mended(case: AttentionCase) -> AttentionCase:
        kept = [i for i, request in enumerate(case.requests) if not unwanted(request)] or [0]
        captured = case.execution.capture_requests
        execution = case.execution
        if captured is not None:
            execution = dataclasses.replace(execution, capture_requests=tuple(captured[i] for i in kept))
        return case.replace(requests=tuple(case.requests[i] for i in kept), execution=execution)

    return mended


# The least change first. A rule is a function, so the only way to learn what it minds is to ask it.
MENDS: tuple[Mend, ...] = (
    _execution(num_splits=1),
    _execution(num_splits=None),
    _without(lambda request: request.kv_len == 0),
    _without(lambda request: request.extend_len == 0),
    lambda case: case.replace(sinks=False),
    lambda case: case.replace(logits_soft_cap=None),
    lambda case: case.replace(execution=Execution()),
    lambda case: case.replace(causal=True),
    lambda case: case.replace(head_dim_vo=case.head_dim_qk),
    lambda case: case.replace(window_left=None),
    lambda case: case.replace(num_qo_heads=case.num_kv_heads),
    lambda case: case.replace(dtype="bfloat16", kv_dtype="bfloat16", k_scale=1.0, v_scale=1.0),
)


def mend(case: AttentionCase, capabilities: Capabilities) -> AttentionCase | None:
    """`case` with as little changed as makes it supported, or None. One change is tried before several."""
    if capabilities.unsupported(case) is None:
        return case
    together = case
    for change in MENDS:
        for start in (case, together):
            try:
                changed = change(start)
            except CaseError:  # a graph captured for fewer rows than are left, say
                continue
            if capabilities.unsupported(changed) is None:
                return changed
            together = changed
    return None
