"""An X-ray in words: too many keys, too few, another request's, stale slots; regular patterns by their rule."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from cases.ragged import indptr, query_rows
from cases.schema import AttentionCase
from harness.diagnosis.where import spans
from harness.diagnosis.xray import Attended
from references.visibility import visible_interval


@dataclass(frozen=True, slots=True)
class RowDifference:
    """One row (union over its heads). Positions within the request; foreign are (request, position)."""

    request: int
    position: int
    missing: tuple[int, ...]
    extra: tuple[int, ...]
    twice: tuple[int, ...]
    foreign: tuple[tuple[int, int], ...]
    unowned: int
    other_head: bool
    broken: bool


def row_differences(attended: Attended) -> list[RowDifference]:
    """Every row that attended to anything but what it should."""
    case = attended.case
    rows = query_rows(case, "cpu")
    starts = indptr([r.kv_len for r in case.requests], "cpu", torch.int64)
    times, expected = attended.times.cpu(), attended.expected.cpu()
    own_head = torch.arange(case.num_qo_heads) // case.group_size
    found = []
    for row in torch.nonzero(attended.differs.any(1)).flatten().tolist():
        request = int(rows.request[row])
        begin, end = int(starts[request]), int(starts[request + 1])
        mine, right = times[row], expected[row]
        broken = attended.broken[row].cpu()
        sound = ~broken
        missing = ((mine == 0) & right & sound[:, None]).any(0)
        extra = ((mine > 0) & ~right).any(0)
        outside = torch.nonzero(extra).flatten()
        foreign = [int(k) for k in outside if not begin <= int(k) < end]
        inside = torch.nonzero(extra[begin:end]).flatten().tolist()
        found.append(
            RowDifference(
                request=request,
                position=int(rows.position[row]),
                missing=tuple(torch.nonzero(missing[begin:end]).flatten().tolist()),
                extra=tuple(inside),
                twice=tuple(torch.nonzero(((mine > 1) & right).any(0)[begin:end]).flatten().tolist()),
                foreign=tuple(_owner(k, starts) for k in foreign),
                unowned=int(attended.unowned[row].max()),
                other_head=bool(((attended.kv_head[row].cpu() != own_head) & (mine.sum(-1) > 0) & sound).any()),
                broken=bool(broken.any()),
            )
        )
    return found


def _owner(key: int, starts: Tensor) -> tuple[int, int]:
    request = int(torch.searchsorted(starts, torch.tensor(key), right=True)) - 1
    return request, key - int(starts[request])


def say_differences(case: AttentionCase, differences: list[RowDifference], limit: int = 3) -> list[str]:
    """The kinds of difference there are, one line each, most telling first."""
    lines: list[str] = []
    foreign = [d for d in differences if d.foreign]
    if foreign:
        d = foreign[0]
        others = sorted({request for request, _ in d.foreign})
        keys = spans(sorted(p for request, p in d.foreign if request == others[0]))
        lines.append(
            f"another request's keys are seen: request {d.request} query {d.position} attends to keys {keys} of "
            f"request {others[0]}{_more(foreign)}"
        )
    stale = [d for d in differences if d.unowned]
    if stale:
        d = stale[0]
        lines.append(
            f"stale slots are seen: request {d.request} query {d.position} attends to {d.unowned} slots that hold "
            f"no key{_more(stale)}"
        )
    for name, one, many in (
        ("missing", "is missing", "are missing"),
        ("extra", "is seen and should not be", "are seen and should not be"),
        ("twice", "counts twice", "count twice"),
    ):
        some = [d for d in differences if getattr(d, name)]
        whole = _to_the_end(case, differences) if name == "missing" else ""
        if whole:
            lines.append(f"{whole}{_more(some)}")
        elif some:
            keys = _keys(some, name)
            verb = many if keys.startswith(("keys", "the keys")) else one
            lines.append(f"{keys} {verb}{_side(case, some, name)}{_more(some)}")
    heads = [d for d in differences if d.other_head]
    if heads and not any(d.foreign or d.missing or d.extra for d in heads):
        lines.append(f"another kv head is read{_more(heads)}")
    broken = [d for d in differences if d.broken]
    if broken:
        lines.append(f"request {broken[0].request} query {broken[0].position} sees no key, or gives NaN{_more(broken)}")
    return lines[:limit]


def _side(case: AttentionCase, some: list[RowDifference], name: str) -> str:
    """Where those keys lie, if all of them lie there."""
    pairs = [(d, key) for d in some for key in getattr(d, name)]
    page = _whole_page(case, {(d.request, getattr(d, name)) for d in some})
    if page is not None:
        return f", page {page} of the request"
    left = case.window_left
    if name == "extra":
        if left is not None and all(key < d.position - left for d, key in pairs):
            return ", all left of the window"
        if case.causal and all(key > d.position for d, key in pairs):
            return ", all after the query"
    elif all(key >= case.requests[d.request].prefix_len for d, key in pairs):
        return ", all of them new rows"
    elif all(key < case.requests[d.request].prefix_len for d, key in pairs):
        return ", all in the cached prefix" if any(r.extend_len > 1 for r in case.requests) else ""
    return ""


def _to_the_end(case: AttentionCase, differences: list[RowDifference]) -> str:
    """Keys that are missing from a page edge on, whichever of them a row should see; "" if that is not the rule.

    A row that sees no key fits where it should see none before the edge; a request of such rows alone shows no edge.
    """
    first, last = (bound.tolist() for bound in visible_interval(case, query_rows(case, "cpu")))
    by_row = {(d.request, d.position): d for d in differences}
    edges: dict[int, int] = {}
    row = 0
    for request, shape in enumerate(case.requests):
        rows = [by_row.get((request, shape.prefix_len + at)) for at in range(shape.extend_len)]
        right = [tuple(range(first[row + at], last[row + at])) for at in range(shape.extend_len)]
        row += shape.extend_len
        gone = [() if d is None else keys if d.broken else d.missing for d, keys in zip(rows, right, strict=True)]
        missing = {key for keys in gone for key in keys}
        if not any(d and d.missing for d in rows):
            continue
        size = case.page_size
        edge = min(missing) // size * size
        as_the_rule = all(
            some == tuple(key for key in keys if key >= edge) for some, keys in zip(gone, right, strict=True)
        )
        if size == 1 or not edge or not as_the_rule or max(missing) < shape.kv_len - 1:
            return ""
        edges[request] = edge
    new_rows = {request for request, edge in edges.items() if edge == case.requests[request].prefix_len}
    if len(edges) > 1 and len(new_rows) == len(edges):
        return ""  # that all of them are new rows says more
    if len(edges) > 1:
        listed = ", ".join(f"{edge} of request {request}" for request, edge in list(edges.items())[:3])
        return f"keys from a page edge to the end of the request are missing: from {listed}{' ...' * (len(edges) > 3)}"
    for request, edge in edges.items():
        keys = range(edge, case.requests[request].kv_len)
        new = ", where the new rows begin," if new_rows else ""
        noun, verb = ("keys", "are") if len(keys) > 1 else ("key", "is")
        said = f"{noun} {spans(keys)} of request {request} {verb} missing"
        return f"{said}, from the page edge at {edge}{new} to the end of the request"
    return ""


def _whole_page(case: AttentionCase, keys: set[tuple[int, tuple[int, ...]]]) -> int | None:
    """The logical page that all of the keys make up, to its end or the request's, or None."""
    if len(keys) != 1 or case.page_size == 1:
        return None
    request, members = next(iter(keys))
    first, size = members[0], case.page_size
    whole = range(first, min(first + size, case.requests[request].kv_len))
    return first // size if first % size == 0 and list(members) == list(whole) else None


def _more(some: list[RowDifference]) -> str:
    return f" ({len(some)} rows)" if len(some) > 1 else ""


def _keys(some: list[RowDifference], name: str) -> str:
    """Which keys: by number if all rows agree, by distance if they agree in that, else by example."""
    values = [(d, getattr(d, name)) for d in some]
    together = sorted({k for _, keys in values for k in keys})
    requests = sorted({d.request for d in some})
    of = f" of request {requests[0]}" if len(requests) == 1 else ""
    step = _step(together)
    if step > 1 and len(together) >= 3:
        listed = ", ".join(str(k) for k in together[:3])
        more = " ..." if len(together) > 3 else ""
        return f"keys {listed}{more}{of} (every {step}{'nd' if step == 2 else 'rd' if step == 3 else 'th'})"
    distances = {tuple(sorted(d.position - k for k in keys)) for d, keys in values}
    if len(distances) == 1 and len(some) > 1:
        only = distances.pop()
        return f"the key{'s' if len(only) > 1 else ''} {spans(only)} before each query{of}"
    if len({keys for _, keys in values}) == 1:
        return f"key{'s' if len(together) > 1 else ''} {spans(together)}{of}"
    d, keys = values[0]
    return f"key{'s' if len(keys) > 1 else ''} {spans(keys)} of query {d.position} in request {d.request}"


def _step(keys: list[int]) -> int:
    """The common distance of neighbouring keys, or 0."""
    steps = {b - a for a, b in itertools.pairwise(keys)}
    return steps.pop() if len(steps) == 1 else 0


def kinds(differences: Iterable[RowDifference]) -> frozenset[str]:
    """What there is of: missing (seeing no key is that), extra, twice, foreign, unowned, other_head."""
    some = list(differences)
    names = ("missing", "extra", "twice", "foreign", "unowned", "other_head")
    found = {name for name in names if any(getattr(d, name) for d in some)}
    return frozenset(found | ({"missing"} if any(d.broken for d in some) else set()))


def guess_class(differences: Iterable[RowDifference]) -> str:
    """The nearest plain description of what a set of differences has in common."""
    some = list(differences)
    if any(d.foreign for d in some):
        return "wrong request"
    if any(d.unowned for d in some):
        return "stale slots"
    if any(d.twice for d in some):
        return "keys counted twice"
    missing, extra = any(d.missing for d in some), any(d.extra for d in some)
    if missing and extra:
        return "other keys"
    if missing:
        return "too few keys"
    if extra:
        return "too many keys"
    if any(d.other_head for d in some):
        return "wrong head"
    return "no keys" if any(d.broken for d in some) else ""
