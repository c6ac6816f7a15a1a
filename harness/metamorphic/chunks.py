"""An extend in two chunks gives the last rows that it gives in one: the first chunk is prefix to the second.

Other code computes them (another prefix length, another query tile, a merge where there was none), so they agree
within the bound of either way and never bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterator

from cases.recipes import LogicalData
from cases.schema import AttentionCase, Request
from harness.metamorphic.relation import Subject, Variant, rows_of


class ChunkedExtend:
    name = "chunked-extend"

    def not_run(self, subject: Subject) -> str | None:
        return None if subject.case.max_extend_len > 1 else "no request has two new rows to part"

    def variants(self, subject: Subject) -> Iterator[Variant]:
        case, data = subject.case, subject.data
        cuts = _cuts(case)
        extends = [r.extend_len for r in case.requests]
        rows = rows_of(extends, range(case.num_requests), cuts, subject.device)
        requests = tuple(
            Request(r.prefix_len + cut, r.extend_len - cut) for r, cut in zip(case.requests, cuts, strict=True)
        )
        yield Variant(
            "the extend's first rows as prefix",
            case.replace(requests=requests),
            LogicalData(data.q[rows], data.k, data.v, data.sinks),
            rows,
            False,
            subject.level,
            own_bound=True,
        )


def _cuts(case: AttentionCase) -> list[int]:
    """Rows in the first chunk of each request, anywhere between its new rows: the place turns with the case id."""
    turn = int(case.id, 16)
    return [1 + (turn + 7 * i) % (r.extend_len - 1) if r.extend_len > 1 else 0 for i, r in enumerate(case.requests)]
