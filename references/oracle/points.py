"""Which (P, E, W) points are walked, and through which cache histories."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor

from references.oracle.models import VOCABULARY
from references.oracle.recorder import RecordedModel, random_ids
from references.oracle.session import Recording, Session

BATCH = 2


def edge_lengths(window: int) -> list[int]:
    """Lengths below, at and above a window's edges: 1, W-2, W-1, W, W+1 and past two windows."""
    return sorted({n for n in (1, window - 2, window - 1, window, window + 1, 2 * window + 3) if n > 0})


def chunkings(window: int) -> Iterator[Sequence[int]]:
    """Whole sequences in several calls: uneven chunks round the window's edges, and repeated decode."""
    yield (window - 1, window, window + 1, 2, 1, 2 * window + 3)
    yield (2 * window + 3, 1, window + 1, window - 1)
    yield (1,) * (window + 4)
    yield (window + 2, *(1,) * (window + 2))


def recordings(model: RecordedModel, window: int) -> Iterator[tuple[Recording, Tensor]]:
    """Every attention call at `window`, each with what the model gives for the same rows in one shot.

    For every pair of edge lengths a prefill of P and an extend of E; the chunkings; and one call over
    every length that came up.
    """
    longest = max(2 * edge_lengths(window)[-1], *(sum(chunks) for chunks in chunkings(window)))
    ids = random_ids(VOCABULARY, BATCH, longest, seed=1)
    whole: dict[int, list[Recording]] = {}

    def one_shot(layer: int, start: int, stop: int) -> Tensor:
        """[BATCH * (stop - start), heads, dim] of the model run once over `stop` tokens."""
        if stop not in whole:
            whole[stop] = Session(model).feed(ids[:, :stop])
        out = whole[stop][layer].out
        return out.view(BATCH, stop, *out.shape[1:])[:, start:].flatten(0, 1)

    def step(session: Session, extend: int) -> Iterator[tuple[Recording, Tensor]]:
        start = session.length
        for recording in session.feed(ids[:, start : start + extend]):
            yield recording, one_shot(recording.layer, start, start + extend)

    for prefix in edge_lengths(window):
        prefilled = Session(model)
        yield from step(prefilled, prefix)
        for extend in edge_lengths(window):
            yield from step(prefilled.fork(), extend)
    for chunks in chunkings(window):
        session = Session(model)
        for chunk in chunks:
            yield from step(session, chunk)
    for calls in whole.values():
        for recording in calls:
            yield recording, recording.out
