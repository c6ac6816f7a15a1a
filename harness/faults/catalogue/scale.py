"""Scale, sinks and softcap: right keys, wrong weights."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from cases.batch import AttentionBatch
from cases.schema import AttentionCase, Request
from harness.adapters.flash_attention_plans import FlashAttentionPlan
from harness.emulation.hooks import RequestCall, Tile
from harness.faults.catalogue import building as b
from harness.faults.protocol import Fault, FaultClass

SATURATION = 448 / 512  # e4m3's largest value over the largest P of a lazily rescaled softmax

CAPPED = AttentionCase(requests=(Request(5, 2),), logits_soft_cap=1.0)
SINKS = AttentionCase(requests=(Request(2, 2),), sinks=True)
FP8 = AttentionCase(requests=(Request(5, 2),), kv_dtype="float8_e4m3fn", k_scale=1.5, v_scale=0.5)


def cap_after_mask(tile: Tile, raw: Tensor, scores: Tensor) -> Tensor:
    """-inf becomes -cap: loaded keys that should be hidden get weight."""
    del raw
    launch = tile.request.launch
    if launch.soft_cap <= 0:
        return scores
    return torch.where(scores == launch.mask_fill, -launch.soft_cap, scores)


def raw_sink(request: RequestCall, sinks: Tensor, row_max: Tensor, term: Tensor) -> Tensor:
    """The denominator grows by the sink itself instead of by exp(sink)."""
    del request, term
    return sinks * torch.exp(-row_max)


def scaled_sink(request: RequestCall, sinks: Tensor, row_max: Tensor, term: Tensor) -> Tensor:
    del term
    return torch.exp(sinks * request.launch.sm_scale - row_max)


def sink_in_base_2(request: RequestCall, sinks: Tensor, row_max: Tensor, term: Tensor) -> Tensor:
    del request, term
    return torch.exp(sinks * torch.log(torch.tensor(2.0)) - row_max)


def without_sinks(plan: FlashAttentionPlan, batch: AttentionBatch) -> FlashAttentionPlan | None:
    """A sink that weighs nothing, so that the returned LSE leaves it out too."""
    del batch
    if plan.sinks is None:
        return None
    return dataclasses.replace(plan, sinks=torch.full_like(plan.sinks, -1e4))


def saturated(tile: Tile, weights: Tensor) -> Tensor:
    del tile
    return weights.clamp(max=SATURATION)


def _kv_scaled(case: AttentionCase) -> bool:
    return case.k_scale != 1.0 or case.v_scale != 1.0


def _cap_shows(case: AttentionCase) -> bool:
    """Hidden keys are loaded beside visible ones only where several rows share a tile."""
    return case.logits_soft_cap is not None and case.max_extend_len > 1


fp8_scales = b.unless(_kv_scaled, "k_scale and v_scale are 1")

FAULTS: tuple[Fault, ...] = (
    Fault(
        "softcap-after-mask",
        FaultClass.SCALE_SINK_CAP,
        "the soft cap is applied after the mask: hidden keys have score -cap",
        ("flashinfer PR #350",),
        on_kernel=b.kernel(score=cap_after_mask),
        blind=b.unless(_cap_shows, "no soft cap, or one new row per request"),
        smallest=CAPPED,
    ),
    Fault(
        "softcap-ignored",
        FaultClass.SCALE_SINK_CAP,
        "the soft cap is not passed on",
        on_plan=b.replanned(lambda case: None if case.logits_soft_cap is None else {"logits_soft_cap": None}),
        blind=b.with_soft_cap,
        smallest=CAPPED,
    ),
    Fault(
        "sink-added-raw",
        FaultClass.SCALE_SINK_CAP,
        "the denominator grows by the sink, not by exp(sink)",
        ("flash-attn e81c237e", "flash-attn 2f78d484", "flash-attn 5844fa69"),
        on_kernel=b.kernel(sink=raw_sink),
        blind=b.with_sinks,
        adapters=("flash-attn-4*",),
        smallest=SINKS,
    ),
    Fault(
        "sink-scaled",
        FaultClass.SCALE_SINK_CAP,
        "the sink is multiplied by the softmax scale like a score",
        on_kernel=b.kernel(sink=scaled_sink),
        blind=b.with_sinks,
        adapters=("flash-attn-4*",),
        smallest=SINKS,
    ),
    Fault(
        "sink-in-base-2",
        FaultClass.SCALE_SINK_CAP,
        "the sink is taken for a base-2 logit",
        on_kernel=b.kernel(sink=sink_in_base_2),
        blind=b.with_sinks,
        adapters=("flash-attn-4*",),
        smallest=SINKS,
    ),
    Fault(
        "sinks-ignored",
        FaultClass.SCALE_SINK_CAP,
        "sinks are accepted and dropped",
        ("vllm PR #52148",),
        on_plan=b.by_plan(flash=without_sinks),
        blind=b.with_sinks,
        adapters=("flash-attn-4*",),
        smallest=SINKS,
    ),
    Fault(
        "kv-scale-applied-twice",
        FaultClass.SCALE_SINK_CAP,
        "the cache is dequantised and its scale then applied again",
        ("vllm PR #48016",),
        on_plan=b.replanned(lambda case: {"sm_scale": case.scale * case.k_scale} if case.k_scale != 1 else None),
        blind=b.unless(lambda case: case.k_scale != 1.0, "k_scale is 1"),
        smallest=FP8,
    ),
    Fault(
        "kv-scales-dropped",
        FaultClass.SCALE_SINK_CAP,
        "k_scale and v_scale stay at their default of 1",
        ("vllm PR #42580", "vllm PR #42080", "vllm PR #34863"),
        on_plan=b.replanned(lambda case: {"k_scale": 1.0, "v_scale": 1.0} if _kv_scaled(case) else None),
        blind=fp8_scales,
        smallest=FP8,
    ),
    Fault(
        "probabilities-saturate",
        FaultClass.SCALE_SINK_CAP,
        "P saturates below the weight of the largest score, as e4m3 does at 448",
        ("flash-attn PR #2717",),
        on_kernel=b.kernel(probability=saturated),
        smallest=AttentionCase(requests=(Request(5, 2),), recipe="spiky"),
    ),
    Fault(
        "scale-doubled",
        FaultClass.SCALE_SINK_CAP,
        "the softmax scale is applied to q and to the scores: here, twice its value",
        on_plan=b.replanned(lambda case: {"sm_scale": 2 * case.scale}),
        smallest=AttentionCase(requests=(Request(5, 2),)),
    ),
)
