"""From records to what the report shows, as compact columns: 20,000 records must stay a small file.

Texts that repeat (names, families, reasons, versions) are kept once and referred to by number; figures
have three digits. The JavaScript of the page reads this, and so do the tests.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cases.schema import AttentionCase
from harness import __version__
from harness.figures import error_over_atol, error_over_bound, family, total_seconds
from harness.gate.comparison import GateResult
from harness.record import Record
from harness.record_files import Key
from harness.report.visibility import picture_rows
from harness.verdict import Verdict

MAX_DETAILS = 1000  # findings with evidence and case; the rest are listed, and lie in the records


class Names:
    """Texts by number, in the order of their first use."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._at: dict[str, int] = {}

    def __call__(self, text: str) -> int:
        if text not in self._at:
            self._at[text] = len(self.texts)
            self.texts.append(text)
        return self._at[text]


@dataclass(frozen=True, slots=True)
class ReportInput:
    """replay: case id -> file for the replay command; pictures: case id -> data URLs; missing: planned keys
    without a record; baseline: (its name, the gate's result)."""

    records: Sequence[Record]
    title: str
    replay: Mapping[str, str] = field(default_factory=dict)
    pictures: Mapping[str, Sequence[str]] = field(default_factory=dict)
    missing: Sequence[Key] = ()
    baseline: tuple[str, GateResult] | None = None


def three_digits(value: float | None) -> float | None:
    """Three significant digits; the largest numbers, which rounding up would make infinite, stay as they are."""
    if value is None:
        return None
    rounded = float(f"{value:.3g}")
    return rounded if math.isfinite(rounded) else value


def build_model(inputs: ReportInput) -> dict[str, Any]:
    """Plain JSON values: everything the page shows."""
    names = {record.case: record.case.name for record in inputs.records}
    records = sorted(inputs.records, key=lambda r: (r.adapter, names[r.case], r.case.id))
    adapters, families, devices, reasons, suites = Names(), Names(), Names(), Names(), Names()
    cases = CaseColumns(families)
    rows: dict[str, list[Any]] = {name: [] for name in _COLUMNS}
    details: dict[str, Any] = {}
    findings = 0
    for number, record in enumerate(records):
        rows["case"].append(cases.add(record.case))
        rows["adapter"].append(adapters(record.adapter))
        rows["verdict"].append(list(Verdict).index(record.verdict))
        rows["error"].append(three_digits(record.max_abs_diff))
        rows["bound"].append(three_digits(error_over_bound(record)))
        rows["atol"].append(three_digits(error_over_atol(record)))
        rows["seconds"].append(three_digits(total_seconds(record)))
        rows["device"].append(devices(record.device))
        rows["suite"].append(suites(record.suite or ""))
        rows["stability"].append("" if record.stability is None else str(record.stability))
        rows["reason"].append(reasons(record.reason))
        if record.verdict.is_finding or record.verdict is Verdict.ERROR:
            findings += 1
            if findings <= MAX_DETAILS:
                details[str(number)] = _detail(record, inputs)
    rows["stability"] = rows["stability"] if any(rows["stability"]) else []
    return {
        "title": inputs.title,
        "release": __version__,
        "verdicts": [str(verdict) for verdict in Verdict],
        "adapters": adapters.texts,
        "families": families.texts,
        "devices": devices.texts,
        "suites": suites.texts,
        "reasons": reasons.texts,
        "cases": cases.columns,
        "records": rows,
        "details": details,
        "findings": findings,
        "missing": [list(key) for key in inputs.missing],
        "versions": _versions(records),
        "times": _times(records),
        "stages": _stages(records),
        "baseline": None if inputs.baseline is None else _baseline(*inputs.baseline),
    }


_COLUMNS = (
    *("case", "adapter", "verdict", "error", "bound", "atol", "seconds"),
    *("device", "suite", "stability", "reason"),
)


class CaseColumns:
    """The cases of the records, each once."""

    def __init__(self, families: Names) -> None:
        self._families = families
        self._at: dict[AttentionCase, int] = {}
        self.columns: dict[str, list[Any]] = {
            name: [] for name in ("id", "name", "family", "requests", "window", "causal", "size")
        }

    def add(self, case: AttentionCase) -> int:
        if case not in self._at:
            self._at[case] = len(self._at)
            self.columns["id"].append(case.id)
            self.columns["name"].append(case.name)
            self.columns["family"].append(self._families(family(case)))
            self.columns["requests"].append([length for request in case.requests for length in request])
            self.columns["window"].append(case.window_left)
            self.columns["causal"].append(int(case.causal))
            self.columns["size"].append(case.total_q + case.total_kv)
        return self._at[case]


def _detail(record: Record, inputs: ReportInput) -> dict[str, Any]:
    place = worst_place(record)
    fault = f" --fault {record.fault}" if record.fault else ""
    file = inputs.replay.get(record.case.id, "CASE.json")
    return {
        "explanation": list(record.explanation),
        "evidence": [
            [e.kind, e.passed, e.message, _measures(e.measure), e.decides] for e in record.evidence if e.kind != "xray"
        ],
        "case": record.case.to_json(),
        "replay": f"attn-harness replay {file} --adapter {record.adapter}{fault}",
        "saved": record.case.id in inputs.replay,
        "versions": record.versions,
        "poison": record.poison,
        "place": place,
        "picture": picture_rows(record, place),
        "rows": next((e.measure["rows"] for e in record.evidence if e.measure.get("rows")), None),
        "pictures": list(inputs.pictures.get(record.case.id, ())),
    }


def worst_place(record: Record) -> dict[str, Any] | None:
    """Where it fails worst (request, position, row, head): by what failed, and of that by what decides."""
    for evidence in sorted(record.evidence, key=lambda e: (e.passed is not False, not e.decides)):
        place = evidence.measure.get("worst")
        if isinstance(place, dict) and type(place.get("request")) is int and type(place.get("position")) is int:
            return place
    return None


def _measures(measure: Mapping[str, Any]) -> dict[str, Any]:
    """Figures and short lists of an evidence; places are told by its message."""
    shown: dict[str, Any] = {}
    for name, value in measure.items():
        if isinstance(value, float):
            shown[name] = three_digits(value)
        elif isinstance(value, (int, str, bool)) or (isinstance(value, list) and len(value) <= 8):
            shown[name] = value
    return shown


def _versions(records: Iterable[Record]) -> list[list[Any]]:
    """[package, [version, ...]] with torch and the libraries under test before the rest."""
    found: dict[str, dict[str, None]] = {}
    for record in records:
        for package, version in record.versions.items():
            found.setdefault(package, {})[version] = None
    return [[package, sorted(found[package])] for package in sorted(found, key=lambda p: (p == "python", p))]


def _times(records: Iterable[Record]) -> list[str]:
    times = sorted(record.time for record in records if record.time)
    return [times[0], times[-1]] if times else []


def _stages(records: Iterable[Record]) -> dict[str, dict[str, float]]:
    """Seconds by adapter and stage, without the total."""
    sums: dict[str, dict[str, float]] = {}
    for record in records:
        mine = sums.setdefault(record.adapter, {})
        for stage, seconds in record.seconds.items():
            if stage != "total":
                mine[stage] = mine.get(stage, 0.0) + seconds
    return {adapter: {stage: round(s, 3) for stage, s in stages.items()} for adapter, stages in sums.items()}


def _baseline(name: str, result: GateResult) -> dict[str, Any]:
    return {
        "name": name,
        "passed": result.passed,
        "changes": [[str(c.kind), c.adapter, c.case_name, c.case_id, c.sentence] for c in result.changes],
        "known": len(result.known),
        "standing": len(result.standing),
        "fixed": len(result.fixed),
        "new": len(result.new),
        "notes": list(result.notes),
    }
