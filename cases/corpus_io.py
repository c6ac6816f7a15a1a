"""Cases in files: the committed corpus, and any case that somebody hands over.

A case file is a case's JSON, or an object with a "case" and whatever else is worth keeping beside
it (the corpus keeps "provenance").
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cases.errors import CaseError
from cases.schema import AttentionCase

CORPUS_DIR = Path(__file__).parent / "corpus"


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where a corpus case comes from.

    reference:   the public report, "sglang PR #26513"
    fault_class: a class of harness/faults ("window", "extent", ...)
    symptom:     what was seen, in one line
    note:        how the case differs from the report's shape ("" if it does not)
    """

    project: str
    reference: str
    fault_class: str
    symptom: str
    note: str = ""

    @staticmethod
    def from_json(body: object) -> Provenance:
        """Raises CaseError where something is missing or is no text."""
        if not isinstance(body, Mapping):
            raise CaseError("provenance is no JSON object; give project, reference, class and symptom.")
        for name in ("project", "reference", "class", "symptom"):
            if not isinstance(body.get(name), str) or not body[name]:
                raise CaseError(f"provenance has no {name}; add it as text.")
        note = body.get("note", "")
        return Provenance(body["project"], body["reference"], body["class"], body["symptom"], str(note))


@dataclass(frozen=True, slots=True)
class CorpusEntry:
    """One file of the corpus; `name` is the file's, without .json."""

    name: str
    case: AttentionCase
    provenance: Provenance


class _Refused(ValueError):
    """What Python's reader takes and no case file may hold; the text says what and what to do."""


def _each_key_once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(key for at, (key, _) in enumerate(pairs) if key in dict(pairs[:at]))
        # One of the two would be dropped in silence.
        raise _Refused(f"has the key {twice!r} twice; keep one")
    return found


def _refuse_constant(name: str) -> None:
    """JSON has no NaN or Infinity, and a name such as the poison level "nan" is not to be had from one."""
    raise _Refused(f"holds the bare constant {name}, which is no JSON; give a finite number, or text in quotes")


def read_case_json(path: str | Path) -> tuple[AttentionCase, Mapping[str, object]]:
    """The case of a file, and what stands beside it ({} for a bare case).

    Raises CaseError, one sentence that names the file: missing, no JSON, or no valid case.
    """
    path = Path(path)
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            raise CaseError(f"{path}: is no regular file; give a case file (JSON).")  # a pipe may never end
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise CaseError(f"{path}: there is no such file.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise CaseError(f"{path}: cannot be read ({error}).") from None
    try:
        body = json.loads(text, object_pairs_hook=_each_key_once, parse_constant=_refuse_constant)
    except _Refused as error:
        raise CaseError(f"{path}: {error}.") from None
    except (ValueError, RecursionError) as error:  # ValueError: an integer of thousands of digits
        where = "nested too deep" if isinstance(error, RecursionError) else "a number is too long"
        if isinstance(error, json.JSONDecodeError):
            where = f"line {error.lineno}: {error.msg}"
        raise CaseError(f"{path}: is no valid JSON ({where}).") from None
    beside: Mapping[str, object] = {}
    if isinstance(body, Mapping) and "case" in body and "requests" not in body:
        beside = {key: value for key, value in body.items() if key != "case"}
        body = body["case"]
    try:
        return AttentionCase.from_json(body), beside
    except CaseError as error:
        raise CaseError(f"{path}: {error}") from None


def load_case_file(path: str | Path) -> AttentionCase:
    """The case of a file: a bare case, a corpus entry, or a finding's case.json. Raises CaseError."""
    return read_case_json(path)[0]


def load_corpus(folder: str | Path = CORPUS_DIR) -> tuple[CorpusEntry, ...]:
    """Every entry of the corpus, by name. Raises CaseError for a file that is no entry."""
    entries = []
    for path in sorted(Path(folder).glob("*.json")):
        case, beside = read_case_json(path)
        try:
            provenance = Provenance.from_json(beside.get("provenance"))
        except CaseError as error:
            raise CaseError(f"{path}: {error}") from None
        entries.append(CorpusEntry(path.stem, case, provenance))
    return tuple(entries)
