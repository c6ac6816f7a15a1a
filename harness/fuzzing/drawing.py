"""The strategy of a session."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis.strategies import SearchStrategy

from cases.draw_limits import find_profile
from cases.schema import AttentionCase
from cases.strategies import attention_cases
from harness.fuzzing.limits import Declaration, draw_limits


def cases_for(
    declared: Declaration, profile: str, mended: Callable[[AttentionCase], AttentionCase | None]
) -> SearchStrategy[AttentionCase]:
    """Cases that an adapter takes. What only its rules refuse is mended; what cannot be is drawn again.

    `mended` is `mend` with the adapter's true capabilities, wherever those are.
    Raises UsageError or CaseError at once for an adapter or a profile that leaves nothing to draw.
    """
    find_profile(profile)
    drawn = attention_cases(profile, draw_limits(declared))
    return drawn.map(mended).filter(lambda case: case is not None)  # type: ignore[return-value]
