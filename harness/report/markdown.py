"""The report as Markdown: for a pull request, a terminal, a place without a browser."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from harness.figures import error_over_atol, error_over_bound, family
from harness.grouping import group_findings
from harness.record import Record
from harness.report.github import cell
from harness.report.model import ReportInput, three_digits
from harness.verdict import Verdict

MAX_FINDINGS = 50  # kinds of them


def render_markdown(inputs: ReportInput) -> str:
    """The same as the page says, without its pictures."""
    return "\n".join(_lines(inputs)) + "\n"


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """A Markdown table; cells are given as they are to stand."""
    yield "| " + " | ".join(headings) + " |"
    yield "|" + "---|" * len(headings)
    for row in rows:
        yield "| " + " | ".join(row) + " |"


def _lines(inputs: ReportInput) -> Iterator[str]:
    records = inputs.records
    yield f"# {inputs.title}"
    yield ""
    counts = Counter(record.verdict for record in records)
    yield f"{len(records)} records: " + ", ".join(f"{counts[v]} {v}" for v in Verdict if counts[v])
    yield ""
    for device in sorted({record.device for record in records} - {""}):
        yield f"- {device}"
    for package in sorted({package for record in records for package in record.versions}):
        versions = sorted({record.versions[package] for record in records if package in record.versions})
        yield f"- {package} {', '.join(versions)}"
    if inputs.missing:
        yield f"- **{len(inputs.missing)} planned cases have no record**"
    if inputs.baseline is not None:
        yield from _baseline(inputs)
    yield from _findings(inputs)
    yield ""
    yield "## Adapters and kinds of case"
    yield ""
    yield from _matrix(records)
    yield ""
    yield "## Seconds"
    yield ""
    yield from _seconds(records)


def _baseline(inputs: ReportInput) -> Iterator[str]:
    assert inputs.baseline is not None
    name, result = inputs.baseline
    yield ""
    yield f"## Against baseline {name}"
    yield ""
    if result.passed:
        yield "Nothing got worse."
        return
    yield from table(
        ("what", "adapter", "case", ""),
        (
            (str(c.kind), cell(c.adapter), f"{cell(c.case_name)} `{c.case_id}`", cell(c.sentence))
            for c in result.changes
        ),
    )


def _findings(inputs: ReportInput) -> Iterator[str]:
    findings = [r for r in inputs.records if r.verdict.is_finding or r.verdict is Verdict.ERROR]
    yield ""
    yield "## Findings"
    yield ""
    if not findings:
        yield "None: every case that ran is right."
    groups = group_findings(findings)
    for group in groups[:MAX_FINDINGS]:
        record = group.first
        yield f"### {record.verdict}: {record.adapter}, {group.told}{record.case.name} `{record.case.id}`"
        yield ""
        for line in filter(None, (record.reason, *record.explanation, group.run_again)):
            yield f"- {cell(line)}"
        file = inputs.replay.get(record.case.id)
        if file is not None:
            fault = f" --fault {record.fault}" if record.fault else ""
            yield ""
            yield f"      attn-harness replay {file} --adapter {record.adapter}{fault}"
        if group.others:
            yield ""
            yield f"also: {group.other_ids}"
        yield ""
    if len(groups) > MAX_FINDINGS:
        left = sum(len(group.records) for group in groups[MAX_FINDINGS:])
        yield f"... and {left} more in {len(groups) - MAX_FINDINGS} groups, in the records."


def _matrix(records: Sequence[Record]) -> Iterator[str]:
    adapters = sorted({record.adapter for record in records})
    groups: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        groups.setdefault((family(record.case), record.adapter), []).append(record)
    families = sorted({name for name, _ in groups})
    yield from table(
        ("", *map(cell, adapters)),
        ((cell(name), *(_cell(groups.get((name, adapter), ())) for adapter in adapters)) for name in families),
    )


def _cell(group: Sequence[Record]) -> str:
    ran = [record for record in group if record.verdict is not Verdict.UNSUPPORTED]
    if not ran:
        return "not supported" if group else ""
    failing = Counter(str(record.verdict) for record in ran if record.verdict is not Verdict.PASS)
    text = ", ".join(f"**{count} {verdict}**" for verdict, count in failing.most_common())
    text = f"{text} of {len(ran)}" if text else str(len(ran))
    ratios = [r if (r := error_over_bound(record)) is not None else error_over_atol(record) for record in ran]
    known = [ratio for ratio in ratios if ratio is not None]
    return f"{text} ({three_digits(max(known)):g})" if known else text


def _seconds(records: Sequence[Record]) -> Iterator[str]:
    rows = []
    for adapter in sorted({record.adapter for record in records}):
        taken = sorted(r.seconds["total"] for r in records if r.adapter == adapter and "total" in r.seconds)
        if taken:
            rows.append((cell(adapter), str(len(taken)), f"{sum(taken):.1f}", f"{taken[len(taken) // 2]:.3f}"))
    yield from table(("adapter", "records", "seconds", "median"), rows)
