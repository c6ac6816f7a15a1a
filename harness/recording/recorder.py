"""Writes each kind of attention batch once, as case JSON. Holds no tensor, no token, no text.

Two batches are of one kind if they agree in everything but lengths, and their lengths fall into the same
classes: powers of two, and on which side of a page edge and of the window they lie. Those are the edges
where attention kernels break; a server's endless variety of lengths in between is not.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from pathlib import Path

from cases.errors import CaseError
from cases.schema import AttentionCase, Request

log = logging.getLogger(__name__)

MAX_ERRORS = 3  # then the recorder turns itself off
MAX_REQUESTS = 512  # a larger batch is cut: the case stays replayable on one GPU


class Recorder:
    """Give batches to `see`; it never raises and never waits for a device.

    folder:     where ID.json files go; made when the first one is written
    per_minute: at most so many files in any minute
    limit:      at most so many files in all
    interval:   seconds between two looks at a batch; between them `see` costs a clock reading
    """

    def __init__(
        self,
        folder: Path,
        *,
        per_minute: int = 6,
        limit: int = 500,
        interval: float = 0.25,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.folder = folder
        self.per_minute = per_minute
        self.limit = limit
        self.interval = interval
        self.written = 0
        self.errors = 0
        self._clock = clock
        self._kinds: set[Hashable] = set()
        self._recent: list[float] = []
        self._next_look = -float("inf")

    @property
    def is_on(self) -> bool:
        return self.errors < MAX_ERRORS and self.written < self.limit

    def see(self, make: Callable[[], Iterable[AttentionCase | None]]) -> None:
        """`make` gives the batch's cases, one per kind of layer; None for what is not dense attention.

        It runs inside a serving process, so whatever goes wrong is logged, not raised; after MAX_ERRORS
        of them nothing is recorded any more.
        """
        if not self.is_on or not self._is_time():
            return
        try:
            for case in make():
                if case is not None and self.is_on:
                    self._keep(case)
        except (
            CaseError,
            OSError,
            AttributeError,
            TypeError,
            ValueError,
            RuntimeError,
            IndexError,
            KeyError,
        ) as problem:
            self.errors += 1
            last = "; recording is off" if self.errors >= MAX_ERRORS else ""
            log.warning("attention batch not recorded (%s: %s)%s", type(problem).__name__, problem, last)

    def _is_time(self) -> bool:
        now = self._clock()
        if now < self._next_look:
            return False
        self._next_look = now + self.interval
        self._recent = [at for at in self._recent if now - at < 60.0]
        return len(self._recent) < self.per_minute

    def _keep(self, case: AttentionCase) -> None:
        kind = kind_of(case)
        if kind in self._kinds:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{case.id}.json"
        if not path.exists():  # several ranks of a server may share the folder
            unfinished = path.with_suffix(f".{os.getpid()}.tmp")
            unfinished.write_text(json.dumps(case.to_json(), indent=1) + "\n", encoding="utf-8")
            unfinished.replace(path)
        self._kinds.add(kind)
        self._recent.append(self._clock())
        self.written += 1


def kind_of(case: AttentionCase) -> Hashable:
    """What two batches share that need only one case between them."""
    classes = frozenset(_classes(r, case) for r in case.requests)
    # Requests do not meet in attention: how many of a class there are matters to schedulers only, coarsely.
    bare = case.replace(requests=(Request(1, 1),))
    return bare.canonical(), classes, case.num_requests.bit_length()


def _classes(request: Request, case: AttentionCase) -> tuple[int | bool, ...]:
    window = case.window_left
    return (
        request.prefix_len.bit_length(),
        request.extend_len.bit_length(),
        request.prefix_len % case.page_size == 0,
        request.kv_len % case.page_size == 0,
        window is not None and request.prefix_len > window,
        window is not None and request.extend_len > window + 1,
        window is not None and request.kv_len > window + 1,
    )


def requests_of(prefix: Sequence[int], extend: Sequence[int]) -> tuple[Request, ...]:
    pairs = zip(prefix, extend, strict=True)
    return tuple(Request(int(p), int(e)) for p, e in pairs)[:MAX_REQUESTS]
