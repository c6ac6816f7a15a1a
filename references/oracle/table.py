"""Run the oracle: every model, layer kind and (P, E, W) point, and the table of differences."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cases.ragged import query_rows
from cases.recipes import LogicalData
from cases.schema import AttentionCase
from references.golden import golden_attention
from references.hf_eager import hf_eager_attention
from references.oracle.internals import OracleError, load_internals
from references.oracle.models import MODELS, VOCABULARY, ModelSpec, build_model
from references.oracle.recorder import RecordedModel, random_ids
from references.oracle.session import Recording, Session, chunkings, edge_lengths
from references.visibility import visible_interval, visible_mask

WINDOWS = (2, 4, 8, 16)
BATCH = 2

# fp32 limits. A model's own fp32 arithmetic is what is measured: outputs are of size 1 to 3, sums run over
# up to 70 keys and 16 dimensions, so a few units of 2^-24 each.
FP32_LIMIT = 1e-6
# Cached against one-shot is the model against itself, with the second layer fed from differently rounded
# first-layer outputs.
ONE_SHOT_LIMIT = 1e-5


def golden_out(case: AttentionCase, data: LogicalData) -> Tensor:
    return golden_attention(case, data).out


def golden_visible(case: AttentionCase) -> Tensor:
    """bool [total_q, max_kv_len] from the visibility rule."""
    first, last = visible_interval(case, query_rows(case, "cpu"))
    return visible_mask(first, last, torch.arange(case.max_kv_len))


@dataclass(frozen=True, slots=True)
class Judge:
    """What is compared with the models: the references, or a planted error in their place.

    out: (case, data) -> [total_q, num_qo_heads, head_dim_vo]; visible: case -> bool
    [total_q, max_kv_len].
    """

    out: Callable[[AttentionCase, LogicalData], Tensor] = golden_out
    visible: Callable[[AttentionCase], Tensor] = golden_visible


@dataclass(slots=True)
class OracleRow:
    """One model x layer kind x dtype: how much was compared, and the largest difference of each comparison.

    points: distinct (P, E, W); calls: attention calls recorded (a point comes up in several cache
    histories); values: output values compared; mask_cells and mask_differences: (query, key) pairs of
    the models' masks against the visibility rule; golden, hf_eager: largest |reference - model|;
    one_shot: largest |cached - one-shot| of the model itself.
    """

    model: str
    layer_kind: str
    dtype: str
    transformers: str
    windows: tuple[int, ...]
    points: int = 0
    calls: int = 0
    values: int = 0
    mask_cells: int = 0
    mask_differences: int = 0
    golden: float = 0.0
    hf_eager: float = 0.0
    one_shot: float = 0.0

    @property
    def ok(self) -> bool:
        return (
            self.calls > 0
            and self.mask_differences == 0
            and self.golden <= FP32_LIMIT
            and self.hf_eager <= FP32_LIMIT
            and self.one_shot <= ONE_SHOT_LIMIT
        )

    def to_json(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "ok": self.ok}


def run_oracle(
    models: Sequence[str] | None = None,
    windows: Sequence[int] = WINDOWS,
    *,
    judge: Judge | None = None,
    on_step: Callable[[str, int], None] | None = None,
) -> Iterator[OracleRow]:
    """Compare with the tiny fp32 `models` (None: all), two rows for one that mixes layer kinds.

    `on_step(model, window)` is called before each window of each model. Raises OracleError for an
    unknown model, a window below 2 (transformers' sliding cache fails there) or a transformers release
    that moved an internal.
    """
    specs = [_spec(name) for name in (MODELS if models is None else models)]
    if not windows or min(windows) < 2:
        raise OracleError(f"windows are {list(windows)}; give one or more of 2 and above, as sliding_window counts keys.")
    internals = load_internals()
    for spec in specs:
        rows = {
            kind: OracleRow(spec.name, kind, "float32", internals.version, tuple(windows))
            for kind in dict.fromkeys(spec.kinds)
        }
        seen: dict[str, set[tuple[int, int, int]]] = {kind: set() for kind in rows}
        for window in windows:
            if on_step is not None:
                on_step(spec.name, window)
            model = RecordedModel(build_model(spec, window, torch.float32), internals)
            for recording, one_shot in recordings(model, window):
                if recording.layer_kind != spec.kinds[recording.layer]:
                    raise OracleError(
                        f"layer {recording.layer} of {spec.model_class} attends as a {recording.layer_kind} layer where "
                        f"its config asks for {spec.kinds[recording.layer]}; teach references/oracle/models.py."
                    )
                row = rows[recording.layer_kind]
                _compare(row, recording, one_shot, judge or Judge())
                request = recording.case.requests[0]
                seen[recording.layer_kind].add((request.prefix_len, request.extend_len, window))
        for kind, row in rows.items():
            row.points = len(seen[kind])
            yield row


def recordings(model: RecordedModel, window: int) -> Iterator[tuple[Recording, Tensor]]:
    """Every attention call of every (P, E) and chunking, each with the one-shot output of the same rows."""
    ids = random_ids(VOCABULARY, BATCH, max(sum(c) for c in (*chunkings(window), 2 * edge_lengths(window)[-1:])), seed=1)
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
    for calls in list(whole.values()):
        for recording in calls:
            yield recording, recording.out


def _spec(name: str) -> ModelSpec:
    if name not in MODELS:
        raise OracleError(f"model {name!r} is unknown; use one of {', '.join(MODELS)}.")
    return MODELS[name]


def _compare(row: OracleRow, recording: Recording, one_shot: Tensor, judge: Judge) -> None:
    case, data = recording.case, recording.data
    extend = case.requests[0].extend_len
    visible = judge.visible(case)[:extend]
    mask = torch.zeros_like(visible)
    mask[:, recording.kv_offset :] = recording.mask
    row.calls += 1
    row.values += recording.out.numel()
    row.mask_cells += mask.numel()
    row.mask_differences += int((mask != visible).sum())
    row.golden = max(row.golden, _largest(judge.out(case, data), recording.out))
    row.hf_eager = max(row.hf_eager, _largest(hf_eager_attention(case, data)[0], recording.out))
    row.one_shot = max(row.one_shot, _largest(one_shot, recording.out))


def _largest(ours: Tensor, theirs: Tensor) -> float:
    """Largest |ours - theirs|; infinite where either is not a number, so that a NaN cannot pass."""
    difference = (ours.double() - theirs.double()).abs()
    return float(difference.nan_to_num(nan=torch.inf).max())
