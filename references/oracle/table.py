"""Run the oracle: every model, layer kind and (P, E, W) point, and the largest differences."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cases.recipes import torch_dtype
from references.golden import golden_attention
from references.hf_eager import hf_eager_attention
from references.oracle.eager_rounding import eager_bounds
from references.oracle.internals import Internals, OracleError, load_internals
from references.oracle.judge import Judge
from references.oracle.models import MODELS, ModelSpec, build_model
from references.oracle.points import recordings
from references.oracle.recorder import RecordedModel
from references.oracle.session import Recording
from references.oracle.threads import one_thread
from references.visibility import visible_mask

WINDOWS = (2, 4, 8, 16)
DTYPES = ("float32", "bfloat16")

# The model's own fp32 arithmetic is what is measured: outputs are of size 1 to 3, scores of a few units,
# sums run over up to 70 keys, so some units of 2^-24. Largest seen 6.7e-7.
FP32_LIMIT = 1e-6
# Cached against one-shot is the model against itself, the second layer fed from differently rounded
# outputs of the first. Largest seen 2.5e-6.
ONE_SHOT_LIMIT = 1e-5


@dataclass(slots=True)
class OracleRow:
    """One model x layer kind x dtype: how much was compared, and the largest difference of each comparison.

    points: distinct (P, E, W); calls: attention calls recorded (a point comes up in several cache
    histories); values: output values compared; mask_cells and mask_differences: (query, key) pairs of
    the models' masks against the visibility rule; golden, hf_eager: largest |reference - model|;
    one_shot: largest |cached - one-shot| of the model itself; bound_ratio: below fp32, the largest
    |golden - model| over the bound of its own row (see `eager_rounding`).
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
    bound_ratio: float | None = None

    @property
    def ok(self) -> bool:
        """In fp32 within the limits above; below it every row within its bound. Masks always equal."""
        if self.calls == 0 or self.mask_differences:
            return False
        if self.dtype != "float32":
            return self.bound_ratio is not None and self.bound_ratio <= 1.0
        return max(self.golden, self.hf_eager) <= FP32_LIMIT and self.one_shot <= ONE_SHOT_LIMIT

    def to_json(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "ok": self.ok}


def run_oracle(
    models: Sequence[str] | None = None,
    windows: Sequence[int] = WINDOWS,
    dtypes: Sequence[str] = DTYPES,
    *,
    judge: Judge | None = None,
    on_step: Callable[[str, str, int], None] | None = None,
) -> Iterator[OracleRow]:
    """Compare with the tiny `models` (None: all), one row for each layer kind that a model has.

    `on_step(model, dtype, window)` is called before each is walked. Raises OracleError for an unknown
    model or dtype, a window below 2 (transformers' sliding cache fails there) or a transformers
    release that moved an internal.
    """
    specs = [_spec(name) for name in (MODELS if models is None else models)]
    if not specs:
        raise OracleError(f"no model is named; use one or more of {', '.join(MODELS)}.")
    if not windows or min(windows) < 2:
        raise OracleError(f"windows are {list(windows)}; give one or more of 2 and above (sliding_window counts keys).")
    if not dtypes or set(dtypes) - set(DTYPES):
        raise OracleError(f"dtypes are {list(dtypes)}; use one or more of {', '.join(DTYPES)}.")
    internals = load_internals()
    for spec in specs:
        for dtype in dtypes:
            rows = {
                kind: OracleRow(spec.name, kind, dtype, internals.version, tuple(windows))
                for kind in dict.fromkeys(spec.kinds)
            }
            for window in windows:
                if on_step is not None:
                    on_step(spec.name, dtype, window)
                with one_thread():
                    _walk(spec, window, dtype, internals, judge or Judge(), rows)
            yield from rows.values()


def _spec(name: str) -> ModelSpec:
    if name not in MODELS:
        raise OracleError(f"model {name!r} is unknown; use one of {', '.join(MODELS)}.")
    return MODELS[name]


def _walk(
    spec: ModelSpec, window: int, dtype: str, internals: Internals, judge: Judge, rows: dict[str, OracleRow]
) -> None:
    """Compare every call of one model at one window, and add it to the row of its layer's kind."""
    model = RecordedModel(build_model(spec, window, torch_dtype(dtype)), internals)
    seen: dict[str, set[tuple[int, int]]] = {kind: set() for kind in rows}
    for recording, one_shot in recordings(model, window):
        kind = recording.layer_kind
        if kind != spec.kinds[recording.layer]:
            raise OracleError(
                f"layer {recording.layer} of {spec.model_class} attends as a {kind} layer where its config asks "
                f"for {spec.kinds[recording.layer]}; teach references/oracle/models.py."
            )
        _compare(rows[kind], recording, one_shot, judge)
        seen[kind].add(recording.case.requests[0])
    for kind, row in rows.items():
        row.points += len(seen[kind])


def _compare(row: OracleRow, recording: Recording, one_shot: Tensor, judge: Judge) -> None:
    case, data = recording.case, recording.data
    extend = case.requests[0].extend_len
    first, last = judge.interval(case)
    visible = visible_mask(first[:extend], last[:extend], torch.arange(case.max_kv_len))
    mask = torch.zeros_like(visible)
    mask[:, recording.kv_offset :] = recording.mask
    row.calls += 1
    row.values += recording.out.numel()
    row.mask_cells += mask.numel()
    row.mask_differences += int((mask != visible).sum())
    error = _distance(judge.out(case, data), recording.out)
    row.golden = max(row.golden, float(error.max()))
    row.hf_eager = max(row.hf_eager, float(_distance(hf_eager_attention(case, data)[0], recording.out).max()))
    row.one_shot = max(row.one_shot, float(_distance(one_shot, recording.out).max()))
    if row.dtype != "float32":
        bound = eager_bounds(case, data, golden_attention(case, data, moments=True))
        row.bound_ratio = max(row.bound_ratio or 0.0, float((error / bound).nan_to_num(nan=torch.inf).max()))


def _distance(ours: Tensor, theirs: Tensor) -> Tensor:
    """|ours - theirs| in fp64; infinite where either is not a number, so that a NaN cannot pass."""
    return (ours.double() - theirs.double()).abs().nan_to_num(nan=torch.inf)
