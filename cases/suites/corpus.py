"""The committed corpus as the rows of a suite."""

from __future__ import annotations

from cases.corpus_io import load_corpus
from cases.suites.table import Row


def rows() -> tuple[Row, ...]:
    return tuple(Row(f"{entry.name}: {entry.provenance.symptom}", entry.case) for entry in load_corpus())
