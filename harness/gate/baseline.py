"""The baseline: what each (case, adapter) was like when someone last said "this is right".

A file of JSON lines. The first is a header with the format's version; each other line is an entry,
sorted by key, so that two baselines differ in git by the lines that differ in fact.
"""

from __future__ import annotations

import dataclasses
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.errors import UsageError
from harness.figures import certificates, error_over_bound, total_seconds
from harness.record import MAYBE_NUMBER, MAYBE_TEXT, TEXT, Record, check_finite, check_versions, wrong_type
from harness.record_files import Key, replace_text
from harness.verdict import Verdict

BASELINE_VERSION = 1


@dataclass(frozen=True, slots=True)
class Figure:
    """A measured figure: the largest of the baseline's runs, and largest minus smallest."""

    largest: float
    spread: float = 0.0

    @staticmethod
    def of(values: Iterable[float | None]) -> Figure | None:
        known = [value for value in values if value is not None]
        return Figure(max(known), max(known) - min(known)) if known else None


@dataclass(frozen=True, slots=True)
class Entry:
    """One (case, adapter). `certificates`: name -> (passed, residual); `seconds`: the median run."""

    case_id: str
    adapter: str
    case_name: str
    verdict: Verdict
    suite: str | None = None
    max_abs_diff: Figure | None = None
    error_over_bound: Figure | None = None
    certificates: Mapping[str, tuple[bool | None, Figure | None]] = field(default_factory=dict)
    runs: int = 1
    seconds: float | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    device: str = ""

    @property
    def key(self) -> Key:
        return (self.case_id, self.adapter)


Baseline = dict[Key, Entry]


def worst_first(record: Record) -> tuple[bool, float]:
    """Sort key: of several records of one key the first after sorting is the one that is judged."""
    return (record.verdict is Verdict.PASS, -(record.max_abs_diff or 0.0))


def by_key(records: Iterable[Record]) -> dict[Key, list[Record]]:
    """Records of each (case, adapter), the worst first."""
    groups: dict[Key, list[Record]] = defaultdict(list)
    for record in records:
        groups[record.key].append(record)
    return {key: sorted(group, key=worst_first) for key, group in groups.items()}


def baseline_from_records(records: Iterable[Record]) -> Baseline:
    """A baseline from the records of one run or of several (then their spread is known).

    Raises UsageError for records that say nothing of the kernels: of a planted fault, or of a harness that failed.
    """
    return {key: _entry(group) for key, group in by_key(records).items()}


def _entry(group: list[Record]) -> Entry:
    worst = group[0]
    for record in group:
        if record.fault is not None:
            raise UsageError(
                f"{record.case.name} on {record.adapter} was run with the fault {record.fault!r}; a baseline is "
                "made from runs without one."
            )
        if record.verdict is Verdict.ERROR:
            raise UsageError(
                f"{record.case.name} on {record.adapter} is ERROR ({record.reason}): the harness itself failed, "
                "which no baseline accepts; mend it and run again."
            )
    seconds = sorted(s for record in group if (s := total_seconds(record)) is not None)
    found = [certificates(record) for record in group]
    names = sorted({name for certificate in found for name in certificate})
    return Entry(
        case_id=worst.case.id,
        adapter=worst.adapter,
        case_name=worst.case.name,
        verdict=worst.verdict,
        suite=worst.suite,
        max_abs_diff=Figure.of(record.max_abs_diff for record in group),
        error_over_bound=Figure.of(error_over_bound(record) for record in group),
        certificates={
            name: (
                certificates(worst).get(name, (None, None))[0],
                Figure.of(certificate[name][1] for certificate in found if name in certificate),
            )
            for name in names
        },
        runs=len(group),
        seconds=round(seconds[len(seconds) // 2], 4) if seconds else None,
        versions=dict(worst.versions),
        device=worst.device,
    )


# -- files -------------------------------------------------------------------------------------
def baseline_path(reports: Path, name: str) -> Path:
    """`reports`/baselines/NAME.jsonl, or NAME itself where it is a path to a .jsonl file."""
    if name.endswith(".jsonl") or "/" in name:
        return Path(name)
    return reports / "baselines" / f"{name}.jsonl"


def write_baseline(path: Path, baseline: Baseline) -> None:
    """Write it whole, in one step. Raises UsageError if it cannot be written."""
    header = {"baseline_version": BASELINE_VERSION, "entries": len(baseline)}
    lines = [header] + [_to_json(baseline[key]) for key in sorted(baseline)]
    replace_text(path, "".join(json.dumps(line, separators=(",", ":"), allow_nan=False) + "\n" for line in lines))


def read_baseline(path: Path) -> Baseline:
    """Raises UsageError with one sentence if there is none, or it cannot be read."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise UsageError(f"there is no baseline {path}; make it with `attn-harness gate --update`.") from None
    except (OSError, UnicodeDecodeError) as problem:
        raise UsageError(f"cannot read the baseline {path}: {problem}.") from None
    header = _line(lines[0], f"{path} line 1") if lines else {}
    version = header.get("baseline_version")
    if version is None:
        raise UsageError(f"{path} is no baseline: its first line has no baseline_version; was a record file meant?")
    if version != BASELINE_VERSION:
        raise UsageError(
            f"{path} has baseline_version {version!r}, this release reads {BASELINE_VERSION}; "
            "make it again with `attn-harness gate --update`."
        )
    entries = [_from_json(_line(text, f"{path} line {n}"), f"{path} line {n}") for n, text in enumerate(lines[1:], 2)]
    if len(entries) != header.get("entries"):
        raise UsageError(
            f"{path} says it has {header.get('entries')} entries and has {len(entries)}; take it from git again."
        )
    return {entry.key: entry for entry in entries}


def _line(text: str, where: str) -> dict[str, Any]:
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as problem:
        said = getattr(problem, "msg", "not to be read")
        raise UsageError(f"{where} is no JSON ({said}); take the baseline from git again.") from None
    if not isinstance(body, dict):
        raise UsageError(f"{where} is no JSON object; take the baseline from git again.")
    return body


def _pair(figure: Figure | None) -> list[float] | None:
    return None if figure is None else [figure.largest, figure.spread]


def _figure(pair: Any) -> Figure | None:
    if pair is None:
        return None
    if type(pair) is not list or len(pair) != 2:
        raise wrong_type("a figure", pair, (list,))
    for number in pair:
        if type(number) not in (float, int):
            raise wrong_type("a figure", number, (float,))
        check_finite("a figure", number)
    return Figure(float(pair[0]), float(pair[1]))


KINDS: dict[str, tuple[type, ...]] = {
    "case_id": TEXT,
    "adapter": TEXT,
    "case_name": TEXT,
    "suite": MAYBE_TEXT,
    "certificates": (dict,),
    "runs": (int,),
    "seconds": MAYBE_NUMBER,
    "versions": (dict,),
    "device": TEXT,
}


def _check_types(values: dict[str, Any]) -> None:
    """Raises TypeError with the field's name: a baseline is a file in git, which people merge by hand."""
    for name, kinds in KINDS.items():
        if type(values[name]) not in kinds:
            raise wrong_type(name, values[name], kinds)
    check_versions(values["versions"])
    check_finite("seconds", values["seconds"])


def _certificate(value: Any) -> tuple[bool | None, Figure | None]:
    passed, pair = value
    if passed is not None and type(passed) is not bool:
        raise wrong_type("a certificate's passed", passed, (bool, type(None)))
    return passed, _figure(pair)


def _to_json(entry: Entry) -> dict[str, Any]:
    body: dict[str, Any] = {f.name: getattr(entry, f.name) for f in dataclasses.fields(Entry)}
    body["max_abs_diff"] = _pair(entry.max_abs_diff)
    body["error_over_bound"] = _pair(entry.error_over_bound)
    body["certificates"] = {n: [passed, _pair(figure)] for n, (passed, figure) in entry.certificates.items()}
    return body


def _from_json(body: dict[str, Any], where: str) -> Entry:
    try:
        values = {f.name: body[f.name] for f in dataclasses.fields(Entry)}
        _check_types(values)
        values["verdict"] = Verdict(body["verdict"])
        values["max_abs_diff"] = _figure(body["max_abs_diff"])
        values["error_over_bound"] = _figure(body["error_over_bound"])
        values["certificates"] = {name: _certificate(value) for name, value in body["certificates"].items()}
    except KeyError as missing:
        raise UsageError(f"{where} has no field {missing}; take the baseline from git again.") from None
    except (AttributeError, TypeError, ValueError, IndexError) as problem:
        raise UsageError(
            f"{where} cannot be read: {str(problem).rstrip('.')}; take the baseline from git again."
        ) from None
    return Entry(**values)
