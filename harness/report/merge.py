"""Records of several runs (shards, machines) as one file."""

from __future__ import annotations

import json
from pathlib import Path

from harness.record_files import Key, RecordSet, RunPlan, replace_text, save_plan


def merge_records(loaded: RecordSet, into: Path) -> int:
    """Write the records sorted by key, lines that are equal once, and one plan for them; returns how many.

    Several records of one key stay: they are several runs, and the baseline's spread comes from them.
    Raises UsageError if `into` cannot be written.
    """
    lines = {
        json.dumps(record.to_json(), separators=(",", ":"), allow_nan=False): record.key for record in loaded.records
    }
    ordered = sorted(lines, key=lambda line: (lines[line], line))
    replace_text(into, "".join(line + "\n" for line in ordered))
    if loaded.plans:
        planned: dict[Key, None] = dict.fromkeys(loaded.planned)
        save_plan(into, RunPlan(tuple(planned), loaded.left_out))
    return len(ordered)
