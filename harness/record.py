"""The record: one line of JSON per (case, adapter), appended and flushed as it is made."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cases.errors import CaseError
from cases.schema import AttentionCase
from harness.errors import UsageError
from harness.verdict import Evidence, Stability, Verdict

RECORD_VERSION = 1
FIRST_SEEN = "; first seen when "  # in the reason of a lost device, before the call that happened to notice


@dataclass(frozen=True, slots=True)
class Record:
    """Everything a report, the gate or a baseline may want of one (case, adapter).

    max_abs_diff: against golden, unused slots zeroed if the case failed (None: not measurable)
    poison:       the level that really held, the weaker of the case's and the adapter's
    seconds:      wall time by stage ("build", "plan", "run", "golden", "judge", "total")
    """

    case: AttentionCase
    adapter: str
    verdict: Verdict
    reason: str = ""
    suite: str | None = None
    fault: str | None = None
    max_abs_diff: float | None = None
    atol: float | None = None
    evidence: tuple[Evidence, ...] = ()
    poison: str | None = None
    stability: Stability | None = None
    explanation: tuple[str, ...] = ()
    versions: dict[str, str] = field(default_factory=dict)
    device: str = ""
    seconds: dict[str, float] = field(default_factory=dict)
    time: str = ""

    @property
    def key(self) -> tuple[str, str]:
        """(case id, adapter)"""
        return (self.case.id, self.adapter)

    def replace(self, **changes: Any) -> Record:
        return dataclasses.replace(self, **changes)

    def to_json(self) -> dict[str, Any]:
        body: dict[str, Any] = {"record_version": RECORD_VERSION, "case_id": self.case.id, "case_name": self.case.name}
        body |= {name: getattr(self, name) for name in FIELDS}
        body["case"] = self.case.to_json()
        body["evidence"] = [e.to_json() for e in self.evidence]
        body["explanation"] = list(self.explanation)
        return body

    @staticmethod
    def from_json(body: Any, where: str = "the record", known: AttentionCase | None = None) -> Record:
        """Raises UsageError with one sentence that names `where`. `known`: the case that it is of, if that is told by
        its id, is not read again."""
        if not isinstance(body, dict):
            raise UsageError(f"{where} is no JSON object; is this a file of records?")
        version = body.get("record_version")
        if version != RECORD_VERSION:
            raise UsageError(f"{where} has record_version {version!r}, this release reads {RECORD_VERSION}; run again.")
        try:
            values = {name: body[name] for name in FIELDS}
            for name, kinds in KINDS.items():
                if type(values[name]) not in kinds:
                    raise wrong_type(name, values[name], kinds)
            _check_inside(values)
            is_known = known is not None and body["case_id"] == known.id
            values["case"] = known if is_known else AttentionCase.from_json(body["case"])
            values["verdict"] = Verdict(body["verdict"])
            values["evidence"] = tuple(map(_evidence, body["evidence"]))
            values["explanation"] = tuple(body["explanation"])
            values["stability"] = None if body["stability"] is None else Stability(body["stability"])
        except KeyError as missing:
            raise UsageError(f"{where} has no field {missing}; it is no complete record.") from None
        except (CaseError, TypeError, ValueError) as problem:
            raise UsageError(f"{where} cannot be read: {problem}") from None
        return Record(**values)


FIELDS = tuple(Record.__dataclass_fields__)

# -- types: what reads records trusts them, and files of records are handed from one person to another ------------
TEXT, MAYBE_TEXT, MAYBE_NUMBER = (str,), (str, type(None)), (float, int, type(None))
# Exact types, as the JSON reader makes them: a bool is no number. What is not named here is checked by what it becomes.
KINDS: dict[str, tuple[type, ...]] = {
    "adapter": TEXT,
    "reason": TEXT,
    "suite": MAYBE_TEXT,
    "fault": MAYBE_TEXT,
    "max_abs_diff": MAYBE_NUMBER,
    "atol": MAYBE_NUMBER,
    "evidence": (list,),
    "poison": MAYBE_TEXT,
    "explanation": (list,),
    "versions": (dict,),
    "device": TEXT,
    "seconds": (dict,),
    "time": TEXT,
}
EVIDENCE_KINDS: dict[str, tuple[type, ...]] = {
    "kind": TEXT,
    "passed": (bool, type(None)),
    "measure": (dict,),
    "message": TEXT,
    "decides": (bool,),
}
_WORDS = {str: "text", float: "a number", int: "a number", bool: "true or false", list: "a list", dict: "an object"}


def wrong_type(name: str, value: Any, kinds: tuple[type, ...]) -> TypeError:
    """What to raise for a value of a type that is none of `kinds`."""
    wanted = " or ".join(dict.fromkeys(_WORDS.get(kind, "null") for kind in kinds))
    shown = _WORDS[type(value)] if isinstance(value, (list, dict)) else f"{value!r:.60}"
    return TypeError(f"{name} is {shown}; it must be {wanted}.")


def _check_inside(values: dict[str, Any]) -> None:
    """The numbers finite, and what the lists and objects of text and numbers hold. Raises TypeError."""
    for name in ("max_abs_diff", "atol"):
        check_finite(name, values[name])
    for text in values["explanation"]:
        if type(text) is not str:
            raise wrong_type("explanation[]", text, TEXT)
    check_versions(values["versions"])
    for stage, seconds in values["seconds"].items():
        if type(seconds) is not float and type(seconds) is not int:
            raise wrong_type(f"seconds[{stage!r:.60}]", seconds, (float,))
        check_finite(f"seconds[{stage!r:.60}]", seconds)


def check_versions(versions: dict[str, Any]) -> None:
    """Raises TypeError for a version that is no text."""
    for package, version in versions.items():
        if type(version) is not str:
            raise wrong_type(f"versions[{package!r:.60}]", version, TEXT)


def check_finite(name: str, value: float | None) -> None:
    """Raises TypeError for NaN, infinity and what no float holds."""
    # An integer past what a float holds is neither; nothing that can be measured is past it.
    if value is not None and not -sys.float_info.max <= value <= sys.float_info.max:
        raise TypeError(f"{name} is {'NaN' if value != value else 'past what a number holds'}; it must be finite.")


def _evidence(body: Any) -> Evidence:
    if type(body) is not dict:
        raise wrong_type("evidence[]", body, (dict,))
    made = Evidence(**body)
    for name, kinds in EVIDENCE_KINDS.items():
        if type(getattr(made, name)) not in kinds:
            raise wrong_type(f"evidence[].{name}", getattr(made, name), kinds)
    return made


class RecordWriter:
    """Appends records to a file, one flushed line each, so that a killed run keeps what it has."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("ab", buffering=0)
        except OSError as problem:
            raise UsageError(f"cannot write records to {path}: {problem.strerror}.") from None

    def write(self, record: Record) -> None:
        """Raises UsageError where it cannot be written, such as on a full disk."""
        # One unbuffered append per line: writers that share a file do not cut into each other's lines.
        line = (json.dumps(record.to_json(), separators=(",", ":"), allow_nan=False) + "\n").encode()
        with self._told():
            while line := line[self._file.write(line) :]:  # a disk that is full takes a part, and then says why
                continue

    def close(self) -> None:
        """Raises UsageError where what was written is not on the disk."""
        with self._told():
            try:
                os.fsync(self._file.fileno())
            finally:
                self._file.close()

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except OSError as problem:
            raise UsageError(
                f"cannot write records to {self.path}: {problem.strerror}; those before are kept."
            ) from None


def read_records(path: Path) -> Iterator[Record]:
    """Records of a file. A last line cut short by a kill is dropped; any other bad line is a UsageError."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    except (OSError, UnicodeDecodeError) as problem:
        raise UsageError(f"cannot read records from {path}: {problem}.") from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            body = json.loads(line)
        except (ValueError, RecursionError) as problem:
            if number == len(lines) and not line.endswith("\n"):
                return
            said = getattr(problem, "msg", "not to be read")
            raise UsageError(f"{path} line {number} is no JSON ({said}); mend or remove the line.") from None
        yield Record.from_json(body, f"{path} line {number}")
