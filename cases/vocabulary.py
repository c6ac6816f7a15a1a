"""The words that a case is written in: modes, page orders, layouts, requests, how a call is launched."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


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


MIN_SPARE_PAGES = 2  # pages that no request owns: they are what a wrong page index would read


def pages_owned(request: Request, page_size: int) -> int:
    """Pages that a request holds: its keys, and `extend_len` slots more, as an engine allocates ahead.

    The slots past the keys stay stale; they make "read too far" a wrong answer, not a crash.
    """
    return -(-(request.kv_len + request.extend_len) // page_size)
