"""`attn-harness report`: records as one page, as Markdown, side by side, or merged."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from harness.environment import installed_versions
from harness.errors import UsageError
from harness.gate.baseline import baseline_path, read_baseline
from harness.gate.comparison import Comparison, GateResult, compare
from harness.gate.ledger import read_ledger
from harness.gate.scope import scope_of_records
from harness.record_files import RecordSet, expand, load_records, replace_text, write_case
from harness.report.compare import Side, SideBySide, compare_markdown, side_by_side
from harness.report.markdown import render_markdown
from harness.report.merge import merge_records
from harness.report.model import ReportInput
from harness.report.pictures import find_pictures

FORMATS = ("html", "md")


def report(
    records: Annotated[list[Path] | None, typer.Argument(help="Files or folders of records.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write (default: report.html; md: standard output).")
    ] = None,
    form: Annotated[str, typer.Option("--format", help="html or md.")] = "html",
    baseline: Annotated[
        str | None,
        typer.Option("--baseline", "-b", help="Show the difference from it: a name, or a path (with a / or .jsonl)."),
    ] = None,
    sides: Annotated[
        tuple[Path, Path] | None,
        typer.Option("--compare", metavar="A B", help="Two files or folders of records, side by side."),
    ] = None,
    merge: Annotated[Path | None, typer.Option("--merge", help="Write the records as one file here.")] = None,
    findings: Annotated[
        list[Path] | None, typer.Option("--findings", help="Folder of findings, for their pictures; repeatable.")
    ] = None,
    title: Annotated[str | None, typer.Option("--title", help="The page's title.")] = None,
    reports: Annotated[Path, typer.Option("--reports", help="Folder of baselines, the ledger and cases.")] = Path(
        "reports"
    ),
    as_json: Annotated[bool, typer.Option("--json", help="Print what was written, and the counts, as JSON.")] = False,
) -> None:
    """Make what people read out of records: one HTML file that needs no network.

    Examples:

    - `attn-harness report reports/ -o report.html`
    - `attn-harness report reports/run-20260914-101500-77.jsonl --baseline my-h200 --format md`
    - `attn-harness report --merge all.jsonl shard-1.jsonl shard-2.jsonl`
    - `attn-harness report --compare flashinfer-0.6.18.jsonl flashinfer-0.7.1.jsonl -o difference.html`
    """
    if form not in FORMATS:
        raise UsageError(f"--format is {form!r}; use {' or '.join(FORMATS)}.")
    if as_json and form == "md" and output is None:
        raise UsageError("--json and the Markdown would share standard output; name a file with -o.")
    if sides is not None:
        if records or merge or baseline:
            raise UsageError("--compare takes its two files itself; leave out other records, --merge and --baseline.")
        both = side_by_side(*(Side(_name(path), load_records([path]).records) for path in sides))
        _write(_side_by_side_text(both, form), output, form)
        if as_json:
            typer.echo(json.dumps(_comparison_json(both)))
        return
    if not records:
        raise UsageError("name the records to report on, such as reports/; `attn-harness run` writes them.")
    loaded = load_records(records)
    if merge is not None:
        _refuse_overwriting(merge, records)
        merged = merge_records(loaded, merge)
        _tell(f"{merged} records written to {merge}")
        if output is None and form == "html":
            if as_json:
                typer.echo(json.dumps({"merged": str(merge), "records": merged}))
            return
    inputs = _inputs(loaded, records, title, baseline, findings or [], reports)
    text = _page(inputs, form)
    _write(text, output, form)
    if as_json:
        counts = Counter(str(record.verdict) for record in loaded.records)
        typer.echo(json.dumps({"records": len(loaded.records), "verdicts": counts, "missing": len(inputs.missing)}))


def _inputs(
    loaded: RecordSet,
    paths: list[Path],
    title: str | None,
    baseline: str | None,
    findings: list[Path],
    reports: Path,
) -> ReportInput:
    if not loaded.records:
        raise UsageError(f"there is no record in {', '.join(map(str, paths))}; nothing to report.")
    cases = {record.case.id: record.case for record in loaded.records if record.verdict.is_finding}
    seen = {record.key for record in loaded.records}
    return ReportInput(
        records=loaded.records,
        title=title or _name(paths[0]) if len(paths) == 1 else title or f"Records of {len(paths)} files",
        replay={case_id: str(write_case(case, reports)) for case_id, case in cases.items()},
        pictures=find_pictures(findings),
        missing=[key for key in loaded.planned if key not in seen],
        baseline=None if baseline is None else (baseline, _against(loaded, baseline, reports)),
    )


def _against(loaded: RecordSet, name: str, reports: Path) -> GateResult:
    old = read_baseline(baseline_path(reports, name))
    scope = scope_of_records(loaded, old)
    missing = scope.missing({record.key for record in loaded.records})
    ledger = read_ledger(reports / "known_failures.toml")
    return compare(
        Comparison(loaded.records, old, scope.expected, missing, ledger=ledger, versions=installed_versions())
    )


def _page(inputs: ReportInput, form: str) -> str:
    if form == "md":
        return render_markdown(inputs)
    from harness.report.html import render_report

    return render_report(inputs)


def _side_by_side_text(both: SideBySide, form: str) -> str:
    if not both.pairs:
        raise UsageError(
            f"{both.a.name} and {both.b.name} have no case and adapter in common; compare runs of one suite."
        )
    if form == "md":
        return compare_markdown(both)
    from harness.report.html import render_comparison

    return render_comparison(both)


def _comparison_json(both: SideBySide) -> dict[str, object]:
    return {
        "pairs": len(both.pairs),
        "only_a": len(both.only_a),
        "only_b": len(both.only_b),
        "changed": [
            {"case_id": y.case.id, "adapter": y.adapter, "a": str(x.verdict), "b": str(y.verdict), "reason": y.reason}
            for x, y in both.changed
        ],
    }


def _name(path: Path) -> str:
    return path.name.removesuffix(".jsonl") or str(path.resolve().name)


def _refuse_overwriting(merge: Path, records: list[Path]) -> None:
    if merge.resolve() in {file.resolve() for file in expand(records)}:
        raise UsageError(f"--merge {merge} is one of the files that are merged; give another name.")


def _write(text: str, output: Path | None, form: str) -> None:
    if output is None and form == "md":
        typer.echo(text, nl=False)
        return
    path = output or Path("report.html")
    replace_text(path, text)
    _tell(f"report written to {path}, {len(text.encode()) / 1e6:.2f} MB")


def _tell(sentence: str) -> None:
    typer.echo(sentence, err=True)
