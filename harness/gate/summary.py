"""What the gate says: on a console, and as JSON. It ends with what to do next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.gate.comparison import Change, ChangeKind, GateResult
from harness.grouping import Group, group_findings
from harness.record import Record
from harness.verdict import Verdict

# Changes of each kind on a console, failures that are alike as one; all of them are in --json and the report.
SHOWN = 12


@dataclass(frozen=True, slots=True)
class GateText:
    """What the texts need beside the result. `replay`: case id -> file; `left_out`: jobs there was no time for;
    `unanswered`: planned jobs without a record, of `planned`; `not_run`: why a run did not go on to its end, or "";
    `refused`: failures for which an update does not write the baseline."""

    baseline: str
    records: tuple[str, ...]
    replay: Mapping[str, str]
    entries: int
    left_out: int = 0
    planned: int = 0
    unanswered: int = 0
    update: bool = False
    not_run: str = ""
    refused: int = 0


def replay_command(record: Record, replay: Mapping[str, str]) -> str | None:
    """The command that runs the case again, or None if there is nothing to see, or no file of the case."""
    file = replay.get(record.case.id)
    if file is None or record.verdict is Verdict.UNSUPPORTED:
        return None
    fault = f" --fault {record.fault}" if record.fault else ""
    return f"attn-harness replay {file} --adapter {record.adapter}{fault}"


def verdict_line(result: GateResult) -> str:
    """ "412 records: 405 PASS, 3 WRONG, 4 UNSUPPORTED" """
    total = sum(result.verdicts.values())
    counts = ", ".join(f"{count} {verdict}" for verdict, count in sorted(result.verdicts.items(), key=_pass_first))
    return f"{total} records: {counts}" if total else "no records"


def _pass_first(item: tuple[str, int]) -> tuple[bool, str]:
    return (item[0] != "PASS", item[0])


def gate_lines(result: GateResult, text: GateText) -> Iterator[str]:
    """The console's text, line by line, plain."""
    yield f"baseline {text.baseline}: {text.entries} entries"
    yield verdict_line(result)
    for note in result.notes:
        yield f"  {note}"
    if text.unanswered:
        yield f"  {text.unanswered} of {text.planned} planned cases have no record: the run was killed or still runs"
    if text.left_out:
        yield f"  {text.left_out} cases were left out, for time or on purpose; they are not judged"
    for (case_id, adapter), entry in result.not_launched[:SHOWN]:
        yield f"  not launched: {case_id} on {adapter}, {entry.title} says {' or '.join(entry.verdicts)}"
    if len(result.not_launched) > SHOWN:
        yield f"  ... and {len(result.not_launched) - SHOWN} more that were not launched"
    for kind in ChangeKind:
        changes = [change for change in result.changes if change.kind is kind]
        if changes:
            yield ""
            yield f"{kind.upper()} ({len(changes)})"
            if kind is ChangeKind.NEW_FAILURE:
                yield from _failure_lines(changes, text)
                continue
            for change in changes[:SHOWN]:
                yield from _change_lines(change, text)
            if len(changes) > SHOWN:
                yield f"  ... and {len(changes) - SHOWN} more; --json names every one"
    yield from _beside(result)
    yield ""
    yield from _ending(result, text)


def _failure_lines(changes: Sequence[Change], text: GateText) -> Iterator[str]:
    """Failures of one kind together, as a run's summary has them."""
    by_record = {id(change.record): change for change in changes}
    groups = group_findings([change.record for change in changes if change.record is not None])
    for group in groups[:SHOWN]:
        alike = [by_record[id(record)] for record in group.records]
        yield from _change_lines(by_record[id(group.first)], text, group, alike)
    if len(groups) > SHOWN:
        left = sum(len(group.records) for group in groups[SHOWN:])
        yield f"  ... and {left} more in {len(groups) - SHOWN} groups; --json names every one"


def _change_lines(
    change: Change, text: GateText, group: Group | None = None, alike: Sequence[Change] = ()
) -> Iterator[str]:
    """One change, or the first of a group of changes that are alike."""
    told = group.told if group is not None else ""
    yield f"  {told}{change.case_name} [{change.case_id}] on {change.adapter}"
    sentences = Counter(other.sentence for other in alike)
    if len(sentences) > 1:
        yield f"    {'; '.join(f'{count} x {sentence}' for sentence, count in sentences.most_common())}"
    else:
        yield f"    {change.sentence}"
    record = change.record
    if record is None or change.kind is ChangeKind.LEDGER:
        return
    if record.reason and record.reason not in change.sentence:
        yield f"    {record.reason}"
    for line in record.explanation:
        yield f"    {line}"
    if record.stability is not None:
        yield f"    run three times: {record.stability}"
    command = replay_command(record, text.replay)
    if command is not None:
        yield f"    {command}"
    if group is not None and group.others:
        yield f"    also: {group.other_ids}"


def _beside(result: GateResult) -> Iterator[str]:
    """What does not fail the gate."""
    if result.known:
        yield ""
        yield f"known failures ({len(result.known)}), excused by the ledger"
        by_entry: dict[str, int] = {}
        for _, entry in result.known:
            by_entry[entry.title] = by_entry.get(entry.title, 0) + 1
        for title, count in by_entry.items():
            yield f"  {count} x {title}"
    if result.standing:
        yield ""
        yield f"failing here and in the baseline ({len(result.standing)}), with no entry in the ledger"
        for record in result.standing[:SHOWN]:
            yield f"  {record.verdict} {record.case.name} [{record.case.id}] on {record.adapter}"
        if len(result.standing) > SHOWN:
            yield f"  ... and {len(result.standing) - SHOWN} more"
    if result.fixed:
        yield ""
        yield f"PASS now, with another verdict in the baseline: {len(result.fixed)}"
    if result.new:
        yield f"not in the baseline yet: {len(result.new)}"


def _ending(result: GateResult, text: GateText) -> Iterator[str]:
    for path in text.records:
        yield f"records: {path}"
    if text.refused:
        yield f"gate: baseline {text.baseline} not written: {text.refused} failures that the ledger does not know"
        yield "next: enter them in the ledger, or accept them with --accept-failures; --records FILE spares the run"
        return
    if text.update:
        accepted = f", accepting {len(result.changes)} changes" if result.changes else ""
        yield f"gate: baseline {text.baseline} written{accepted}"
        yield "next: look at its difference in git, and commit it"
        return
    if text.not_run and not result.findings:
        yield "gate: no answer, not all was run"
        return
    if result.passed:
        yield "gate: PASS"
        if result.fixed or result.new:
            yield "next: gate --update to take the new cases and the fixes into the baseline"
        return
    yield f"gate: FAIL ({len(result.changes)} changes)"
    if text.not_run:
        yield f"not all was run: {text.not_run}"
    kinds = {change.kind for change in result.changes}
    first = next((c.record for c in result.changes if c.record is not None and c.kind is not ChangeKind.LEDGER), None)
    command = None if first is None else replay_command(first, text.replay)
    if command is not None:
        yield f"next: {command}"
    elif ChangeKind.LOST in kinds:
        yield "next: run what was lost again; if it was removed on purpose, gate --update"
    elif ChangeKind.LEDGER in kinds:
        yield "next: remove the ledger's entry, or narrow it to what still fails"


def gate_json(result: GateResult, text: GateText, exit_code: int) -> dict[str, Any]:
    """The whole answer as plain JSON values."""
    return {
        "exit_code": exit_code,
        "passed": result.passed and not text.not_run,
        "baseline": text.baseline,
        "records": list(text.records),
        "verdicts": dict(result.verdicts),
        "changes": [_change_json(change, text) for change in result.changes],
        "known": [
            {"case_id": r.case.id, "adapter": r.adapter, "verdict": str(r.verdict), "entry": entry.number}
            for r, entry in result.known
        ],
        "standing": [list(record.key) for record in result.standing],
        "fixed": [list(record.key) for record in result.fixed],
        "new": [list(key) for key in result.new],
        "not_launched": [[*key, entry.number] for key, entry in result.not_launched],
        "left_out": text.left_out,
        "planned_without_record": text.unanswered,
        "not_run": text.not_run,
        "failures_refused": text.refused,
        "notes": list(result.notes),
    }


def _change_json(change: Change, text: GateText) -> dict[str, Any]:
    record = change.record
    return {
        "kind": str(change.kind),
        "case_id": change.case_id,
        "case_name": change.case_name,
        "adapter": change.adapter,
        "sentence": change.sentence,
        "verdict": None if record is None else str(record.verdict),
        "reason": "" if record is None else record.reason,
        "explanation": [] if record is None else list(record.explanation),
        "replay": None if record is None else replay_command(record, text.replay),
    }
