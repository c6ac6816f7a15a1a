"""What a run says when it ends: a table, the findings, and what to do next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from harness.figures import RELATION
from harness.grouping import Group, failed_kinds, group_findings, not_tried
from harness.record import Record
from harness.verdict import Verdict

SHOWN_GROUPS = 12
SHOWN_REASONS = 6


def exit_code(records: Sequence[Record]) -> int:
    """0 all right, 1 a finding, 2 an ERROR of the harness or nothing that could be run."""
    verdicts = {r.verdict for r in records}
    if Verdict.ERROR in verdicts or verdicts <= {Verdict.UNSUPPORTED}:
        return 2
    return 1 if any(v.is_finding for v in verdicts) else 0


def print_summary(
    console: Console, records: Sequence[Record], replay_files: dict[str, str], *, verbose: bool = False
) -> None:
    """`replay_files` maps a case id to the JSON file its finding was left in; `verbose`: every case by its name."""
    console.print(_table(records))
    groups = group_findings([r for r in records if r.verdict.is_finding or r.verdict is Verdict.ERROR])
    shown = groups if verbose else groups[:SHOWN_GROUPS]
    for group in shown:
        _print_group(console, group, replay_files, verbose=verbose)
    if len(groups) > len(shown):
        left = sum(len(group.records) for group in groups[len(shown) :])
        console.print(f"\n... and {left} more cases in {len(groups) - len(shown)} groups; every one is in the records.")
    _print_relations(console, records)
    _print_unsupported(console, records, verbose=verbose)


def _print_group(console: Console, group: Group, replay_files: dict[str, str], *, verbose: bool) -> None:
    record, others = group.first, group.others
    console.print(
        f"\n{record.verdict} {record.adapter}  {group.told}{record.case.name}", markup=False, style="bold red"
    )
    console.print(f"  {record.reason}", markup=False)
    lines = (group.run_again, *record.explanation) if group.comes_and_goes else (*record.explanation, group.run_again)
    for line in filter(None, lines):
        console.print(f"  {line}", markup=False)
    kinds = Counter(", ".join(failed_kinds(r)) for r in group.records) if group.more else Counter()
    if len(kinds) > 1:  # they may be of more than one kind
        console.print(f"  fail: {'; '.join(f'{count} {kind}' for kind, count in kinds.items())}", markup=False)
    if record.case.id in replay_files:
        fault = f" --fault {record.fault}" if record.fault else ""
        fault += " --evidence metamorphic" if _only_a_relation_fails(record) else ""
        again = f"{replay_files[record.case.id]} --adapter {record.adapter}{fault}"
        console.print(f"  attn-harness replay {again}", markup=False)
        if not_tried(record):
            console.print(f"  explanation not tried; to try: attn-harness explain {again}", markup=False)
    if verbose:
        for other in others:
            console.print(f"  also {other.case.id} {other.case.name}: {other.reason}", markup=False)
    elif others:
        console.print(f"  also: {group.other_ids}", markup=False)


def _only_a_relation_fails(record: Record) -> bool:
    failed = [e.kind for e in record.evidence if e.passed is False and e.decides]
    return bool(failed) and all(kind.startswith(RELATION) for kind in failed)


def _print_relations(console: Console, records: Sequence[Record]) -> None:
    """One line for each metamorphic relation, where any was gathered."""
    outcomes = Counter((e.kind, e.passed) for r in records for e in r.evidence if e.kind.startswith(RELATION))
    for kind in dict.fromkeys(kind for kind, _ in outcomes):
        held, broken, not_run = (outcomes[kind, passed] for passed in (True, False, None))
        console.print(f"{kind}: held on {held} cases, broken on {broken}, not run on {not_run}", markup=False)


def _table(records: Sequence[Record]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("adapter", overflow="fold")
    shown = [v for v in Verdict if any(r.verdict is v for r in records)]
    for verdict in shown:
        table.add_column(str(verdict), justify="right")
    for heading in ("max-abs-diff", "error/bound", "seconds"):
        table.add_column(heading, justify="right")
    for adapter in dict.fromkeys(r.adapter for r in records):
        mine = [r for r in records if r.adapter == adapter]
        counts = Counter(r.verdict for r in mine)
        cells = [str(counts[v]) if counts[v] else "-" for v in shown]
        table.add_row(
            adapter,
            *cells,
            _largest(r.max_abs_diff for r in mine),
            _largest(map(bound_ratio, mine)),
            f"{sum(r.seconds.get('total', 0.0) for r in mine):.1f}",
        )
    return table


def bound_ratio(record: Record) -> float | None:
    """Error over bound of the worst row, where the row bound was judged."""
    for evidence in record.evidence:
        if evidence.kind == "bound":
            return evidence.measure.get("ratio")
    return None


def _largest(values: Iterable[float | None]) -> str:
    known = [v for v in values if v is not None]
    return f"{max(known):.3g}" if known else "-"


def _print_unsupported(console: Console, records: Sequence[Record], *, verbose: bool) -> None:
    """Reasons with their counts, most frequent first; `verbose`: each adapter and case."""
    unsupported = [r for r in records if r.verdict is Verdict.UNSUPPORTED]
    if not unsupported:
        return
    if verbose:
        console.print("\nnot supported, as declared:")
        for record in unsupported:
            console.print(f"  {record.adapter} {record.case.id} {record.case.name}: {record.reason}", markup=False)
        return
    console.print(f"\nnot supported, as declared: {len(unsupported)} of {len(records)}")
    reasons = Counter(r.reason for r in unsupported).most_common()
    for reason, count in reasons[:SHOWN_REASONS]:
        console.print(f"  {count:>5}  {reason}", markup=False)
    if len(reasons) > SHOWN_REASONS:
        left = sum(count for _, count in reasons[SHOWN_REASONS:])
        console.print(f"  {left:>5}  for {len(reasons) - SHOWN_REASONS} other reasons (-v names every case)")
