"""Two sets of records side by side: two library versions, two GPUs, or two kernels.

Records meet by (case id, adapter). Where each set has one adapter and they differ (one kernel against
another) they meet by case id alone.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from harness.figures import error_over_atol, error_over_bound, total_seconds
from harness.gate.baseline import by_key
from harness.record import Record
from harness.report.github import cell
from harness.report.markdown import table
from harness.report.model import three_digits
from harness.verdict import Verdict

MAX_ROWS = 500
GRID = 48
LOW, HIGH = -2.5, 2.0  # decades of the scatter plot


@dataclass(frozen=True, slots=True)
class Side:
    name: str
    records: tuple[Record, ...]

    def versions(self) -> dict[str, str]:
        """What was installed and where it ran: package or "device" -> the values found."""
        found: dict[str, set[str]] = {}
        for record in self.records:
            for package, version in (*record.versions.items(), ("device", record.device)):
                if version:
                    found.setdefault(package, set()).add(version)
        return {package: ", ".join(sorted(values)) for package, values in found.items()}


@dataclass(frozen=True, slots=True)
class AdapterRow:
    """Figures of one adapter over the cases that both sides ran; the pairs are (A, B)."""

    adapter: str
    cases: int
    passes: tuple[int, int]
    median_ratio: tuple[float | None, float | None]
    worst_ratio: tuple[float | None, float | None]
    median_seconds: tuple[float | None, float | None]


@dataclass(frozen=True, slots=True)
class SideBySide:
    """a, b: the sides; pairs: records that meet; only_a, only_b: records that do not."""

    a: Side
    b: Side
    pairs: tuple[tuple[Record, Record], ...]
    only_a: tuple[Record, ...]
    only_b: tuple[Record, ...]

    @property
    def changed(self) -> list[tuple[Record, Record]]:
        """Pairs of different verdicts, what got worse first."""
        different = [(x, y) for x, y in self.pairs if x.verdict is not y.verdict]
        return sorted(different, key=lambda p: (p[1].verdict is Verdict.PASS, p[0].adapter, p[0].case.name))

    @property
    def verdicts(self) -> Counter[tuple[Verdict, Verdict]]:
        return Counter((x.verdict, y.verdict) for x, y in self.pairs)

    @property
    def setup(self) -> list[tuple[str, str, str, bool]]:
        """(package or "device", in A, in B, do they differ), what differs first."""
        left, right = self.a.versions(), self.b.versions()
        rows = [(p, left.get(p, "–"), right.get(p, "–")) for p in left.keys() | right.keys()]
        return sorted(((p, x, y, x != y) for p, x, y in rows), key=lambda row: (not row[3], row[0]))

    def adapters(self) -> list[AdapterRow]:
        groups: dict[str, list[tuple[Record, Record]]] = {}
        for x, y in self.pairs:
            name = x.adapter if x.adapter == y.adapter else f"{x.adapter} / {y.adapter}"
            groups.setdefault(name, []).append((x, y))
        return [_row(name, groups[name]) for name in sorted(groups)]


def side_by_side(a: Side, b: Side) -> SideBySide:
    """Pair the records of two sides; of several records of one key the worst stands for them."""
    left, right = by_key(a.records), by_key(b.records)
    adapters = ({key[1] for key in left}, {key[1] for key in right})
    across = len(adapters[0]) == len(adapters[1]) == 1 and adapters[0] != adapters[1]
    place = {(key[0] if across else key): key for key in right}
    pairs, only_a, met = [], [], set()
    for key in sorted(left):
        other = place.get(key[0] if across else key)
        if other is None:
            only_a.append(left[key][0])
        else:
            met.add(other)
            pairs.append((left[key][0], right[other][0]))
    only_b = [right[key][0] for key in sorted(right) if key not in met]
    return SideBySide(a, b, tuple(pairs), tuple(only_a), tuple(only_b))


def ratio_of(record: Record) -> float | None:
    """Error over bound, or over the flat atol where no bound was taken."""
    bound = error_over_bound(record)
    return error_over_atol(record) if bound is None else bound


def _middle(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return three_digits(median(known)) if known else None


def _largest(values: Iterable[float | None]) -> float | None:
    return three_digits(max((value for value in values if value is not None), default=None))


def _row(name: str, pairs: Sequence[tuple[Record, Record]]) -> AdapterRow:
    sides = [[pair[which] for pair in pairs] for which in (0, 1)]
    passes = [sum(record.verdict is Verdict.PASS for record in side) for side in sides]
    middles = [_middle(map(ratio_of, side)) for side in sides]
    largest = [_largest(map(ratio_of, side)) for side in sides]
    seconds = [_middle(map(total_seconds, side)) for side in sides]
    return AdapterRow(
        name,
        len(pairs),
        (passes[0], passes[1]),
        (middles[0], middles[1]),
        (largest[0], largest[1]),
        (seconds[0], seconds[1]),
    )


def scatter(pairs: Iterable[tuple[Record, Record]]) -> list[tuple[int, int, int]]:
    """(column, row, how many pairs) of a GRID x GRID log-log plot of A's ratio (across) and B's (up)."""
    cells: Counter[tuple[int, int]] = Counter()
    for x, y in pairs:
        left, right = ratio_of(x), ratio_of(y)
        if left is not None and right is not None:
            cells[_bin(left), _bin(right)] += 1
    return [(column, row, count) for (column, row), count in sorted(cells.items())]


def _bin(ratio: float) -> int:
    decade = math.log10(ratio) if ratio > 0 else LOW
    return min(GRID - 1, max(0, int(GRID * (decade - LOW) / (HIGH - LOW))))


def compare_markdown(both: SideBySide) -> str:
    """Side by side as Markdown."""
    return "\n".join(_lines(both)) + "\n"


def _lines(both: SideBySide) -> Iterator[str]:
    yield f"# {both.a.name} and {both.b.name}"
    yield ""
    yield (
        f"{len(both.pairs)} cases in both, {len(both.changed)} with another verdict; "
        f"{len(both.only_a)} only in A, {len(both.only_b)} only in B."
    )
    yield ""
    yield from table(
        ("", f"A: {cell(both.a.name)}", f"B: {cell(both.b.name)}"),
        ((cell(p), cell(x), f"**{cell(y)}**" if differs else cell(y)) for p, x, y, differs in both.setup),
    )
    yield ""
    yield "## Changed verdicts"
    yield ""
    if not both.changed:
        yield "None."
    else:
        yield from table(
            ("A", "B", "adapter", "case", "B says"),
            (
                (str(x.verdict), str(y.verdict), cell(y.adapter), f"{cell(y.case.name)} `{y.case.id}`", cell(y.reason))
                for x, y in both.changed[:MAX_ROWS]
            ),
        )
    yield ""
    yield "## Adapters (A, B)"
    yield ""
    yield from table(
        ("adapter", "cases", "PASS", "median error over bound", "worst", "median seconds"),
        (
            (
                cell(row.adapter),
                str(row.cases),
                _pair(row.passes),
                _pair(row.median_ratio),
                _pair(row.worst_ratio),
                _pair(row.median_seconds),
            )
            for row in both.adapters()
        ),
    )


def _pair(values: tuple[float | None, float | None]) -> str:
    return ", ".join("–" if value is None else f"{value:g}" for value in values)
