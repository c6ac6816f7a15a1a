"""Records against a baseline: what got worse, what was lost, what is known.

Each rule is a function that yields changes; a change fails the gate. What does not fail it (known
failures, fixes, other versions) is kept beside them, because it is what a person asks for next.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import chain

from harness.figures import certificates, error_over_bound
from harness.gate.baseline import Baseline, Entry, Figure, by_key
from harness.gate.growth import DEFAULT_FACTOR, ONE_ROUNDING, RATIO_FLOOR, RESIDUAL_FLOOR, growth_limit
from harness.gate.ledger import KnownFailure, Ledger
from harness.record import Record
from harness.record_files import Key
from harness.verdict import Verdict


class ChangeKind(StrEnum):
    """Why the gate fails, most urgent first."""

    NEW_FAILURE = "new failure"
    LOST = "lost coverage"
    EVIDENCE = "changed evidence"
    GREW = "grown error"
    LEDGER = "stale ledger entry"


@dataclass(frozen=True, slots=True)
class Change:
    """One reason for the gate to fail. `record` is None where there is none to show."""

    kind: ChangeKind
    case_id: str
    case_name: str
    adapter: str
    sentence: str
    record: Record | None = None

    @property
    def key(self) -> Key:
        return (self.case_id, self.adapter)


@dataclass(frozen=True, slots=True)
class GateResult:
    """What the gate found. `changes` decide; the rest is said beside them.

    known: failures that the ledger excuses; standing: failures that the baseline has too, with no ledger
    entry; fixed: PASS now, another verdict in the baseline; new: keys that the baseline does not have
    """

    changes: tuple[Change, ...]
    known: tuple[tuple[Record, KnownFailure], ...] = ()
    standing: tuple[Record, ...] = ()
    fixed: tuple[Record, ...] = ()
    new: tuple[Key, ...] = ()
    not_launched: tuple[tuple[Key, KnownFailure], ...] = ()
    verdicts: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        return not self.changes

    @property
    def findings(self) -> tuple[Change, ...]:
        """Changes that a record shows: all but cases that were not run."""
        return tuple(change for change in self.changes if change.record is not None)

    @property
    def unknown_failures(self) -> tuple[Record, ...]:
        """Failures that no entry of the ledger knows, in the baseline or not."""
        new = (c.record for c in self.changes if c.kind is ChangeKind.NEW_FAILURE and c.record is not None)
        return (*new, *self.standing)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Everything a comparison looks at.

    expected:     keys of the baseline that this run was to cover
    missing:      (key -> case name) planned, and without a record
    not_launched: known to crash, and left out on purpose
    versions:     for records of workers that died before they could say theirs
    """

    records: Sequence[Record]
    baseline: Baseline
    expected: Collection[Key]
    missing: Mapping[Key, str] = field(default_factory=dict)
    not_launched: Mapping[Key, KnownFailure] = field(default_factory=dict)
    ledger: Ledger = field(default_factory=Ledger)
    versions: Mapping[str, str] = field(default_factory=dict)
    factor: float = DEFAULT_FACTOR


def compare(inputs: Comparison) -> GateResult:
    """The gate's answer."""
    groups = by_key(inputs.records)
    worst = {key: group[0] for key, group in groups.items()}
    known: list[tuple[Record, KnownFailure]] = []
    standing: list[Record] = []
    fixed: list[Record] = []
    changes: list[Change] = []
    for key, record in sorted(worst.items()):
        entry = inputs.baseline.get(key)
        if record.verdict is Verdict.PASS:
            if entry is not None and entry.verdict is Verdict.PASS:
                changes += chain(_evidence_changes(record, entry), _growth(groups[key], entry, inputs.factor))
            elif entry is not None:
                fixed.append(record)
        elif record.verdict in (Verdict.UNSUPPORTED, Verdict.ERROR):
            changes += _lost_by_verdict(record, entry)
        else:
            excuse = _excuse(record, inputs)
            if excuse is not None:
                known.append((record, excuse))
            elif entry is not None and entry.verdict is record.verdict:
                standing.append(record)
            else:
                changes += _new_failure(record, entry, inputs)
    changes += _lost(inputs, worst)
    changes += _stale_entries(inputs, worst)
    changes.sort(key=lambda change: (list(ChangeKind).index(change.kind), change.adapter, change.case_name))
    return GateResult(
        changes=tuple(changes),
        known=tuple(known),
        standing=tuple(standing),
        fixed=tuple(fixed),
        new=tuple(sorted(key for key in worst if key not in inputs.baseline)),
        not_launched=tuple(sorted(inputs.not_launched.items(), key=lambda item: item[0])),
        verdicts=Counter(str(record.verdict) for record in worst.values()),
        notes=tuple(_notes(inputs)),
    )


def _change(kind: ChangeKind, record: Record, sentence: str) -> Change:
    return Change(kind, record.case.id, record.case.name, record.adapter, sentence, record)


# -- verdicts ----------------------------------------------------------------------------------
def _versions(record: Record, inputs: Comparison) -> Mapping[str, str]:
    return record.versions or inputs.versions


def _excuse(record: Record, inputs: Comparison) -> KnownFailure | None:
    for entry in inputs.ledger.known(record.case, record.adapter, _versions(record, inputs)):
        if record.verdict in entry.verdicts:
            return entry
    return None


def _new_failure(record: Record, entry: Entry | None, inputs: Comparison) -> Iterator[Change]:
    was = "it is not in the baseline" if entry is None else f"the baseline has {entry.verdict}"
    sentence = f"{record.verdict}, {was}"
    expected = {
        str(verdict)
        for known in inputs.ledger.known(record.case, record.adapter, _versions(record, inputs))
        for verdict in known.verdicts
    }
    if expected:
        sentence += f"; the ledger knows it as {' or '.join(sorted(expected))}"
    yield _change(ChangeKind.NEW_FAILURE, record, sentence)


def _lost_by_verdict(record: Record, entry: Entry | None) -> Iterator[Change]:
    """A case that was run and is no longer: declared unsupported now, or lost to an error of the harness."""
    if entry is not None and entry.verdict is not Verdict.UNSUPPORTED:
        sentence = f"{record.verdict} now ({record.reason or 'no reason given'}), the baseline has {entry.verdict}"
        yield _change(ChangeKind.LOST, record, sentence)
    elif record.verdict is Verdict.ERROR:  # whatever the baseline says: nothing was learnt of this case
        yield _change(ChangeKind.LOST, record, f"ERROR: {record.reason or 'the harness failed'}")


# -- coverage ----------------------------------------------------------------------------------
def _lost(inputs: Comparison, worst: Mapping[Key, Record]) -> Iterator[Change]:
    for key, name in sorted(inputs.missing.items()):
        if key not in worst and key not in inputs.not_launched:
            yield Change(ChangeKind.LOST, key[0], name, key[1], "planned, but the run ended before it had a record")
    for key in sorted(inputs.expected):
        entry = inputs.baseline[key]
        if key in worst or key in inputs.missing or key in inputs.not_launched:
            continue
        if entry.verdict is not Verdict.UNSUPPORTED:
            sentence = f"no longer run; the baseline has {entry.verdict}"
            yield Change(ChangeKind.LOST, key[0], entry.case_name, key[1], sentence)


# -- evidence ----------------------------------------------------------------------------------
def _evidence_changes(record: Record, entry: Entry) -> Iterator[Change]:
    """Evidence that held in the baseline, and now fails beside the verdict, or is no longer taken."""
    now = certificates(record)
    for name, (passed, _) in entry.certificates.items():
        if passed is not True:
            continue
        if name not in now:
            yield _change(ChangeKind.EVIDENCE, record, f"certificate {name} held, and is no longer taken")
        elif now[name][0] is None:
            yield _change(ChangeKind.EVIDENCE, record, f"certificate {name} held, and no longer applies")
        elif now[name][0] is False:
            yield _change(ChangeKind.EVIDENCE, record, f"certificate {name} held, and now does not")
    if entry.error_over_bound is not None and error_over_bound(record) is None:
        yield _change(ChangeKind.EVIDENCE, record, "the row bound was taken, and no longer is")


def _growth(group: Sequence[Record], entry: Entry, factor: float) -> Iterator[Change]:
    record = group[0]
    floor = ONE_ROUNDING[record.case.dtype]
    yield from _grew(record, "max-abs-diff", record.max_abs_diff, entry.max_abs_diff, factor, floor)
    yield from _grew(record, "error over bound", error_over_bound(record), entry.error_over_bound, factor, RATIO_FLOOR)
    for name, (_, residual) in certificates(record).items():
        figure = entry.certificates.get(name, (None, None))[1]
        yield from _grew(record, f"residual of certificate {name}", residual, figure, factor, RESIDUAL_FLOOR)


def _grew(
    record: Record, what: str, now: float | None, was: Figure | None, factor: float, floor: float
) -> Iterator[Change]:
    if now is None or was is None:
        return
    limit = growth_limit(was.largest, was.spread, factor=factor, floor=floor)
    if now > limit:
        sentence = f"{what} grew from {was.largest:.3g} (spread {was.spread:.2g}) to {now:.3g}, above {limit:.3g}"
        yield _change(ChangeKind.GREW, record, sentence)


# -- ledger ------------------------------------------------------------------------------------
def _stale_entries(inputs: Comparison, worst: Mapping[Key, Record]) -> Iterator[Change]:
    """Entries whose cases pass: removed, or narrowed to what still fails."""
    for entry in inputs.ledger.entries:
        matched = [r for r in worst.values() if entry.applies(r.case, r.adapter, _versions(r, inputs))]
        passing = sorted((r for r in matched if r.verdict is Verdict.PASS), key=lambda r: r.key)
        failing = [r for r in matched if r.verdict in entry.verdicts]
        if not passing or (failing and not entry.always):
            continue
        if failing:
            sentence = f"{entry.title} says that it fails, and {len(passing)} of {len(matched)} cases pass; narrow it"
        else:
            sentence = f"{entry.title} no longer fails ({len(passing)} cases pass); remove it"
        yield _change(ChangeKind.LEDGER, passing[0], sentence)


# -- notes -------------------------------------------------------------------------------------
def _notes(inputs: Comparison) -> Iterator[str]:
    """What differs from the baseline's making: versions and devices."""
    old_versions: dict[str, set[str]] = {}
    old_devices: set[str] = set()
    for entry in _compared(inputs):
        old_devices |= {entry.device} - {""}
        for package, version in entry.versions.items():
            old_versions.setdefault(package, set()).add(version)
    new_versions: dict[str, set[str]] = {}
    new_devices: set[str] = set()
    for record in inputs.records:
        new_devices |= {record.device} - {""}
        for package, version in record.versions.items():
            new_versions.setdefault(package, set()).add(version)
    for package in sorted(old_versions.keys() | new_versions.keys()):
        old, new = old_versions.get(package, set()), new_versions.get(package, set())
        if old != new and old_versions and new_versions:
            yield f"{package}: {_say(old)} in the baseline, {_say(new)} here"
    if old_devices and new_devices and old_devices != new_devices:
        yield f"device: {_say(old_devices)} in the baseline, {_say(new_devices)} here"


def _compared(inputs: Comparison) -> list[Entry]:
    """The entries that this run is compared with. A suite that the baseline has nothing of is compared with none:
    then those of its adapters, or else all, say on what the baseline was made."""
    adapters = {record.adapter for record in inputs.records}
    keys = {*inputs.expected} | {record.key for record in inputs.records}
    chosen = [entry for key, entry in inputs.baseline.items() if key in keys]
    chosen = chosen or [entry for entry in inputs.baseline.values() if entry.adapter in adapters]
    return chosen or list(inputs.baseline.values())


def _say(values: set[str]) -> str:
    return ", ".join(sorted(values)) or "not installed"
