"""The same batch, planned and run again and again, gives the same bits."""

from __future__ import annotations

from collections.abc import Iterator

from harness.metamorphic.relation import Subject, Variant, all_rows


class Determinism:
    name = "determinism"

    def not_run(self, subject: Subject) -> str | None:
        if not subject.deterministic:
            return "the adapter declares that two runs may differ"
        return "one run has nothing to be compared with" if subject.repeats < 2 else None

    def variants(self, subject: Subject) -> Iterator[Variant]:
        times = subject.repeats - 1  # the first is the run that all relations compare with
        yield Variant(
            "the same inputs again", subject.case, subject.data, all_rows(subject), True, subject.level, times=times
        )
