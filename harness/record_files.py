"""Where a run's records lie, and the plan beside them that says what the run meant to do.

Every run writes a file of its own, so two runs at once cannot damage each other's. The plan is
written before the first case, so that a run that was killed can be told from one that was complete.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from cases.schema import AttentionCase
from harness.errors import UsageError
from harness.record import Record, read_records

PLAN_VERSION = 1
PLAN_SUFFIX = ".plan.json"

Key = tuple[str, str]  # (case id, adapter)


class PlannedJob(Protocol):
    """What a plan needs of a job (harness.running.options.Job)."""

    @property
    def case(self) -> AttentionCase: ...
    @property
    def adapter(self) -> str: ...


@dataclass(frozen=True, slots=True)
class RunPlan:
    """planned: what the run set out to do; left_out: what it was asked for and chose not to do (no time
    for it, or known to crash); shard: (i, n) if the run was one part of n."""

    planned: tuple[Key, ...]
    left_out: tuple[Key, ...] = ()
    shard: tuple[int, int] | None = None


def new_record_path(reports_dir: Path, kind: str) -> Path:
    """A path in `reports_dir` that no other run uses: `KIND-YYYYmmdd-HHMMSS-PID.jsonl`, claimed by creating it.

    Raises UsageError if the folder cannot be written to.
    """
    stem = f"{kind}-{datetime.now(UTC):%Y%m%d-%H%M%S}-{os.getpid()}"
    try:
        reports_dir.mkdir(parents=True, exist_ok=True)
        for attempt in itertools.count(1):
            path = reports_dir / (f"{stem}.jsonl" if attempt == 1 else f"{stem}-{attempt}.jsonl")
            try:
                # Exclusive creation: containers that share a folder may share process ids too.
                path.open("x").close()
            except FileExistsError:
                continue
            return path
    except OSError as problem:
        raise UsageError(f"cannot write records to {reports_dir}: {problem.strerror}; give --reports DIR.") from None
    raise AssertionError("unreachable: the loop above has no end")


def plan_path(records: Path) -> Path:
    """The plan's file beside a file of records."""
    return records.with_name(records.name.removesuffix(".jsonl") + PLAN_SUFFIX)


def write_plan(
    records: Path,
    jobs: Sequence[PlannedJob],
    *,
    left_out: Iterable[Key] = (),
    shard: tuple[int, int] | None = None,
) -> Path:
    """Write the plan beside `records`, before the run; returns the plan's path."""
    plan = RunPlan(tuple((job.case.id, job.adapter) for job in jobs), tuple(left_out), shard)
    return save_plan(records, plan)


def save_plan(records: Path, plan: RunPlan) -> Path:
    """Write `plan` beside `records` in one step: a reader sees it whole or not at all."""
    body = {
        "plan_version": PLAN_VERSION,
        "shard": None if plan.shard is None else list(plan.shard),
        "planned": [list(key) for key in plan.planned],
        "left_out": [list(key) for key in plan.left_out],
    }
    path = plan_path(records)
    replace_text(path, json.dumps(body, separators=(",", ":")) + "\n")
    return path


def read_plan(records: Path) -> RunPlan | None:
    """The plan beside `records`, or None if there is none. Raises UsageError on a broken one."""
    path = plan_path(records)
    if not path.exists():
        return None
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
        if body["plan_version"] != PLAN_VERSION:
            raise UsageError(
                f"{path} has plan_version {body['plan_version']!r}, this release reads {PLAN_VERSION}; run again."
            )
        return RunPlan(_keys(body["planned"]), _keys(body["left_out"]), _shard(body["shard"]))
    except UsageError:
        raise
    except (OSError, KeyError, TypeError, ValueError, RecursionError):
        raise UsageError(f"{path} is no plan of a run; remove it, or run again.") from None


def _keys(pairs: Any) -> tuple[Key, ...]:
    return tuple((str(case_id), str(adapter)) for case_id, adapter in pairs)


def _shard(pair: Any) -> tuple[int, int] | None:
    if pair is None:
        return None
    part, parts = pair
    if type(part) is not int or type(parts) is not int:
        raise TypeError("a shard is two integers")
    return part, parts


def replace_text(path: Path, text: str) -> None:
    """Write a file whole: to a neighbour first, then renamed over. Raises UsageError if it cannot be.

    What is no file, /dev/stdout or a pipe, is written to: renamed over, it would be gone for everybody.
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        try:
            path.write_text(text, encoding="utf-8", errors="backslashreplace")
        except OSError as problem:
            raise UsageError(f"cannot write {path}: {problem.strerror}.") from None
        return
    scratch = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # A reason may hold half a surrogate pair, which is no UTF-8: what an adapter raised can be any text.
        with scratch.open("w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(scratch, path)
    except OSError as problem:
        with contextlib.suppress(OSError):
            scratch.unlink()
        raise UsageError(f"cannot write {path}: {problem.strerror}.") from None


def write_case(case: AttentionCase, reports_dir: Path) -> Path:
    """Leave a case where `attn-harness replay` can be pointed at it: `reports_dir`/failures/ID.json."""
    path = reports_dir / "failures" / f"{case.id}.json"
    replace_text(path, json.dumps(case.to_json(), indent=1) + "\n")
    return path


def expand(paths: Sequence[Path]) -> list[Path]:
    """Files of records: a folder stands for the .jsonl files in it. Raises UsageError on what is not there."""
    files: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(path.glob("*.jsonl"))
            if not inside:
                raise UsageError(f"{path} holds no .jsonl file; give a file of records.")
            files.extend(inside)
        elif path.is_file():
            files.append(path)
        else:
            raise UsageError(f"there is no file of records {path}; `attn-harness run` writes one under reports/.")
    return list(dict.fromkeys(files))


@dataclass(frozen=True, slots=True)
class RecordSet:
    """The records of some files, and their plans."""

    records: tuple[Record, ...]
    plans: tuple[RunPlan, ...]

    @property
    def planned(self) -> tuple[Key, ...]:
        """What the plans named. What of it no record answers was lost: the run was killed, or still goes on."""
        return tuple(dict.fromkeys(key for plan in self.plans for key in plan.planned))

    @property
    def left_out(self) -> tuple[Key, ...]:
        """What a run chose not to do and no other did."""
        seen = {record.key for record in self.records} | set(self.planned)
        return tuple(dict.fromkeys(key for plan in self.plans for key in plan.left_out if key not in seen))


def load_records(paths: Sequence[Path]) -> RecordSet:
    """Records and plans of files and folders. Raises UsageError with one sentence that names the place."""
    files = expand(paths)
    plans = [plan for file in files if (plan := read_plan(file)) is not None]
    return RecordSet(tuple(record for file in files for record in read_records(file)), tuple(plans))
