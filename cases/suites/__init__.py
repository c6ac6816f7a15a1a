"""Named suites: lists of cases that are run as a whole.

Nothing here needs hypothesis, so a kernel worker can load a suite with torch and this package alone.
"""

from __future__ import annotations

from cases.errors import CaseError
from cases.schema import AttentionCase
from cases.suites import corpus, long_context, model_zoo, seeds, smoke
from cases.suites.table import Row, Suite

SUITES: dict[str, Suite] = {
    suite.name: suite
    for suite in (
        Suite("quick", "twelve cases of smoke, for a first run", smoke.quick_rows),
        Suite("smoke", "one small case on every known edge", smoke.rows),
        Suite("seeds", "the two target bugs: SWA extend with prefix, and draft extend v2", seeds.rows),
        Suite("model-zoo", "heads, windows, soft caps and scales of real models", model_zoo.rows),
        Suite("model-zoo-large", "the same models at GPU sizes", model_zoo.large_rows),
        Suite("long-context", "prefixes of 32k to 131072, pools past 2^31 elements (GPU)", long_context.rows),
        Suite("corpus", "the triggers of public bug reports, cases/corpus/*.json", corpus.rows),
    )
}


def find_suite(name: str) -> Suite:
    """The suite of that name. Raises CaseError if there is none."""
    suite = SUITES.get(name)
    if suite is None:
        raise CaseError(f"no suite is called {name!r}; use one of {', '.join(SUITES)}.")
    return suite


def load_suite(name: str) -> tuple[AttentionCase, ...]:
    """The cases of a suite, in order. Raises CaseError if there is none of that name."""
    return find_suite(name).cases()


__all__ = ["SUITES", "Row", "Suite", "find_suite", "load_suite"]
