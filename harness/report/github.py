"""Where GitHub runs us: the job's summary in Markdown, and annotations on the failing run.

Both are asked for by environment variables that only a GitHub runner sets:
GITHUB_STEP_SUMMARY (a file to append to) and GITHUB_ACTIONS ("true").
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from harness.errors import UsageError
from harness.gate.comparison import ChangeKind, GateResult
from harness.gate.summary import GateText, replay_command, verdict_line

MAX_ANNOTATIONS = 10  # GitHub shows no more errors of one step
MAX_ROWS = 200  # a step's summary may have 1 MiB


def error_annotations(result: GateResult, text: GateText) -> Iterator[str]:
    """Workflow commands, one a line: what GitHub shows at the top of a failed run."""
    for change in result.changes[:MAX_ANNOTATIONS]:
        lines = [f"{change.case_name} [{change.case_id}]: {change.sentence}"]
        if change.record is not None and change.kind is not ChangeKind.LEDGER:
            lines += change.record.explanation[:3] or (change.record.reason,)
            command = replay_command(change.record, text.replay)
            lines += [command] if command else []
        message = "\n".join(line for line in lines if line)
        yield f"::error title={_property(f'{change.kind}: {change.adapter}')}::{_data(message)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def cell(text: str) -> str:
    """Text in a Markdown table's cell."""
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")


def step_summary(result: GateResult, text: GateText) -> Iterator[str]:
    """The gate's answer as Markdown."""
    word = "passed" if result.passed else f"failed: {len(result.changes)} changes"
    word = "without an answer: not all was run" if text.not_run and not result.findings else word
    yield f"## Attention gate {word}"
    yield ""
    yield f"{cell(verdict_line(result))}, against baseline `{text.baseline}` ({text.entries} entries)."
    yield ""
    for note in result.notes:
        yield f"- {cell(note)}"
    if text.not_run:
        yield f"- not all was run: {cell(text.not_run)}"
    if text.unanswered:
        yield f"- {text.unanswered} of {text.planned} planned cases have no record"
    if text.left_out:
        yield f"- {text.left_out} cases left out, not judged"
    if result.known:
        yield f"- {len(result.known)} known failures, excused by the ledger"
    if result.standing:
        yield f"- {len(result.standing)} fail here and in the baseline, with no entry in the ledger"
    if result.changes:
        yield ""
        yield "| | adapter | case | what | replay |"
        yield "|---|---|---|---|---|"
        for change in result.changes[:MAX_ROWS]:
            record = change.record
            what = change.sentence
            command = None
            if record is not None and change.kind is not ChangeKind.LEDGER:
                what = "; ".join([what, *(record.explanation[:2] or (record.reason,))]).rstrip("; ")
                command = replay_command(record, text.replay)
            replay = f"`{command}`" if command else ""
            yield (
                f"| {change.kind} | {cell(change.adapter)} | {cell(change.case_name)} `{change.case_id}` "
                f"| {cell(what)} | {replay} |"
            )
        if len(result.changes) > MAX_ROWS:
            yield ""
            yield f"... and {len(result.changes) - MAX_ROWS} more, in the records."


def tell_github(result: GateResult, text: GateText, environment: Mapping[str, str] = os.environ) -> list[str]:
    """Append to the job's summary if there is one; returns the annotations to print (none elsewhere).

    Raises UsageError if the summary's file cannot be written.
    """
    summary = environment.get("GITHUB_STEP_SUMMARY")
    if summary:
        try:
            with Path(summary).open("a", encoding="utf-8") as file:
                file.write("\n".join(step_summary(result, text)) + "\n")
        except OSError as problem:
            raise UsageError(f"cannot write GITHUB_STEP_SUMMARY {summary}: {problem.strerror}.") from None
    return list(error_annotations(result, text)) if environment.get("GITHUB_ACTIONS") == "true" else []
