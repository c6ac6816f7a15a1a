"""The ledger of known failures: what is wrong, is known to be wrong, and does not stop a merge.

A ledger is where a gate goes to die: entries are added in a hurry and never leave. So the rules are
enforced where an entry is built, and by the gate itself:

- No entry without a reference. Who cannot name an upstream issue or a written finding has not looked
  into the failure, and should.
- No entry for a whole adapter: it says which cases, and in which versions. It would hide the next bug.
- An entry names the verdicts it excuses. A WRONG that became a CRASH is news.
- An entry that stops failing fails the gate: the fix came in, and must stay in.
- A case that is known to crash or hang is not launched: it costs a worker, or a GPU, each time.

The file (TOML):

    format_version = 1

    [[known]]
    adapter = "flashinfer-paged-fa2*"                 # a name, or a pattern
    versions = { flashinfer-python = ">=0.6.18,<0.7" }
    case = { causal = false, window_left = "set" }    # see predicate.py
    verdict = ["WRONG"]
    upstream = "flashinfer-ai/flashinfer#4972"        # or a URL, or: finding = "reports/findings/NAME"
    reason = "the split-kv span of a tile is estimated for causal masks only"
    date = 2026-09-14
    always = true                                     # false: fails now and then (a race)
"""

from __future__ import annotations

import datetime
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from cases.schema import AttentionCase
from harness.errors import UsageError
from harness.gate.predicate import CasePredicate, parse_predicate
from harness.verdict import Verdict

LEDGER_VERSION = 1
CRASH_CLASS = (Verdict.CRASH, Verdict.TIMEOUT)
EXCUSABLE = tuple(verdict for verdict in Verdict if verdict.is_finding)

_ISSUE = re.compile(r"[\w.-]+/[\w.-]+#\d+")
_URL = re.compile(r"https://\S+/\S+")
_REQUIRED = ("adapter", "versions", "case", "verdict", "reason", "date")
_OPTIONAL = ("upstream", "finding", "always")


@dataclass(frozen=True, slots=True)
class KnownFailure:
    """One entry; build it with `parse_entry`, which holds the rules. `number` is its place in the file, from 1."""

    number: int
    adapter: str
    versions: Mapping[str, SpecifierSet]
    case: CasePredicate
    verdicts: tuple[Verdict, ...]
    reference: str
    reason: str
    date: datetime.date
    always: bool = True

    @property
    def title(self) -> str:
        return f"entry {self.number} ({self.adapter}, {self.reference})"

    @property
    def is_crash_class(self) -> bool:
        return any(verdict in CRASH_CLASS for verdict in self.verdicts)

    def applies(self, case: AttentionCase, adapter: str, versions: Mapping[str, str]) -> bool:
        """Is this (case, adapter), with these packages, one that the entry says is wrong?"""
        return (
            fnmatchcase(adapter, self.adapter)
            and all(_within(versions.get(package), allowed) for package, allowed in self.versions.items())
            and self.case.matches(case)
        )


def _within(version: str | None, allowed: SpecifierSet) -> bool:
    if version is None:
        return False
    try:
        # Local parts ("2.11.0+cu130") name a build, not a release; pre-releases are what GPU runners run.
        return allowed.contains(Version(version).public, prereleases=True)
    except InvalidVersion:
        return False


@dataclass(frozen=True, slots=True)
class Ledger:
    entries: tuple[KnownFailure, ...] = ()

    def known(self, case: AttentionCase, adapter: str, versions: Mapping[str, str]) -> tuple[KnownFailure, ...]:
        """Every entry that applies."""
        return tuple(entry for entry in self.entries if entry.applies(case, adapter, versions))

    def crashes(self, case: AttentionCase, adapter: str, versions: Mapping[str, str]) -> KnownFailure | None:
        """The entry that says not to launch this, if there is one."""
        return next((entry for entry in self.known(case, adapter, versions) if entry.is_crash_class), None)


def read_ledger(path: Path) -> Ledger:
    """The ledger in `path`; an absent file is an empty one. Raises UsageError with one sentence."""
    if not path.exists():
        return Ledger()
    try:
        body = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as problem:
        raise UsageError(f"the ledger {path} cannot be read: {problem}.") from None
    version = body.pop("format_version", None)
    if version != LEDGER_VERSION:
        raise UsageError(f"the ledger {path} has format_version {version!r}; this release reads {LEDGER_VERSION}.")
    known = body.pop("known", [])
    if body:
        raise UsageError(f"the ledger {path} has {', '.join(sorted(body))}; it may have [[known]] entries only.")
    if not isinstance(known, list):
        raise UsageError(f"the ledger {path} has a table [known]; write each entry as [[known]].")
    root = path.resolve().parent
    return Ledger(tuple(parse_entry(entry, n, f"{path} entry {n}", root) for n, entry in enumerate(known, 1)))


def parse_entry(body: object, number: int, where: str, root: Path) -> KnownFailure:
    """An entry from its TOML table; `root` is where paths of findings start (the ledger's folder, or one above).

    Raises UsageError with one sentence that starts with `where` for whatever breaks a rule of this module.
    """
    if not isinstance(body, Mapping):
        raise UsageError(f"{where} is {body!r}; write it as a [[known]] table.")
    for name in _REQUIRED:
        if name not in body:
            raise UsageError(f"{where} has no {name}; every entry has {', '.join(_REQUIRED)}, and upstream or finding.")
    unknown = set(body) - {*_REQUIRED, *_OPTIONAL}
    if unknown:
        raise UsageError(f"{where} has {', '.join(sorted(unknown))}, which an entry does not have; remove it.")
    always = body.get("always", True)
    if not isinstance(always, bool):
        raise UsageError(f"{where}: always is {always!r}; write true or false.")
    return KnownFailure(
        number=number,
        adapter=_adapter(body["adapter"], where),
        versions=_versions(body["versions"], where),
        case=parse_predicate(body["case"], where),
        verdicts=_verdicts(body["verdict"], where),
        reference=_reference(body, where, root),
        reason=_reason(body["reason"], where),
        date=_date(body["date"], where),
        always=always,
    )


def _adapter(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value.strip("*? "):
        raise UsageError(f"{where}: adapter is {value!r}; name one, or a pattern that says more than *.")
    return value


def _versions(value: Any, where: str) -> dict[str, SpecifierSet]:
    example = 'such as { flashinfer-python = ">=0.6.18,<0.7" }'
    if not isinstance(value, Mapping) or not value:
        raise UsageError(f"{where}: versions is {value!r}; say in which versions it fails, {example}.")
    ranges = {}
    for package, text in value.items():
        try:
            if not str(text).strip():
                raise InvalidSpecifier("empty")
            ranges[package] = SpecifierSet(str(text))
        except InvalidSpecifier:
            raise UsageError(
                f"{where}: versions of {package} are {text!r}, which is no range; write one {example}."
            ) from None
    return ranges


def _verdicts(value: Any, where: str) -> tuple[Verdict, ...]:
    names = value if isinstance(value, list) else [value]
    if not names or any(name not in EXCUSABLE for name in names):
        raise UsageError(f"{where}: verdict is {value!r}; use one or more of {', '.join(EXCUSABLE)}.")
    return tuple(Verdict(name) for name in names)


def _reference(body: Mapping[str, Any], where: str, root: Path) -> str:
    upstream, finding = body.get("upstream"), body.get("finding")
    if upstream is None and finding is None:
        raise UsageError(
            f"{where} has no reference; name the upstream issue (upstream) or a written finding (finding)."
        )
    if upstream is not None:
        if not isinstance(upstream, str) or not (_ISSUE.fullmatch(upstream) or _URL.fullmatch(upstream)):
            raise UsageError(f"{where}: upstream is {upstream!r}; write owner/repository#number, or an https address.")
        return upstream
    # A ledger in reports/ names "reports/findings/X"; one beside its findings names "findings/X".
    if not isinstance(finding, str) or not any((base / finding).exists() for base in (root, root.parent)):
        raise UsageError(f"{where}: finding is {finding!r}, which does not exist; write the finding up first.")
    return finding


def _reason(value: Any, where: str) -> str:
    if not isinstance(value, str) or len(value.split()) < 3:
        raise UsageError(f"{where}: reason is {value!r}; say in a sentence what goes wrong.")
    return value.strip()


def _date(value: Any, where: str) -> datetime.date:
    if isinstance(value, datetime.datetime) or not isinstance(value, datetime.date):
        raise UsageError(f"{where}: date is {value!r}; write the day it was entered, as 2026-09-14 without quotes.")
    # A day's grace: the writer's clock may be ahead in its time zone.
    if value > datetime.date.today() + datetime.timedelta(days=1):
        raise UsageError(f"{where}: date is {value}, which is still to come; write the day it was entered.")
    return value
