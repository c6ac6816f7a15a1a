"""Runs a certificate on the emulated kernel."""

from __future__ import annotations

import functools

from cases.batch import AttentionBatch, build_batch
from cases.recipes import LogicalData
from cases.schema import AttentionCase
from references.certificates import RECIPES, CertificateData, CertificateResult, KernelTraits
from tests.certificates.emulator import Kernel, emulate


def traits_of(kernel: Kernel) -> KernelTraits:
    """What an adapter of the (right) emulated kernel would declare."""
    return KernelTraits(
        merge_legs=kernel.legs,
        p_dtype="input" if kernel.p_dtype is None else str(kernel.p_dtype).removeprefix("torch."),
        lse_base="log2" if kernel.log2_lse else "natural",
        tanh_error=2.0**-kernel.tanh_bits,
    )


def ready_batch(case: AttentionCase, data: LogicalData) -> AttentionBatch:
    batch = build_batch(case, data=data)
    batch.write_new_rows()
    return batch


@functools.lru_cache(maxsize=16)
def _prepared(name: str, case: AttentionCase) -> tuple[CertificateData, AttentionBatch]:
    built = RECIPES[name].build(case, "cpu")
    return built, ready_batch(case, built.data)


def certify(name: str, case: AttentionCase, kernel: Kernel) -> CertificateResult:
    """Judge the emulated kernel, which may hold a fault, as the right kernel of its kind."""
    built, batch = _prepared(name, case)
    return RECIPES[name].judge(case, built, *emulate(batch, kernel), traits_of(kernel))
