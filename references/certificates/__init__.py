"""Mask certificates: exact evidence of which keys a kernel attended to, and how it weighed them.

A recipe replaces the data of a case (q, k, v, sinks) by data whose right answer is an integer, known
from the visibility rule alone; requests, heads, window, softcap, pages and execution stay.

    recipe = RECIPES["flat"]
    reason = applicable("flat", case, traits)        # None, or why it is not run
    built = recipe.build(case, device)
    batch = build_batch(case, device, data=built.data)
    result = recipe.judge(case, built, out, lse, traits)   # lse in natural units, or None
"""

from __future__ import annotations

from cases.schema import AttentionCase
from references.certificates.base import Certificate, CertificateData, CertificateResult
from references.certificates.flat import FLAT
from references.certificates.heads import HEADS
from references.certificates.lure import LURE_MINUS, LURE_PLUS
from references.certificates.select import SELECT
from references.certificates.sink import SINK
from references.certificates.step import STEP
from references.traits import KernelTraits

RECIPES: dict[str, Certificate] = {
    recipe.name: recipe for recipe in (FLAT, STEP, HEADS, SELECT, LURE_PLUS, LURE_MINUS, SINK)
}


def applicable(name: str, case: AttentionCase, traits: KernelTraits) -> str | None:
    """Why recipe `name` is outside its domain on `case`, or None if it holds."""
    return RECIPES[name].domain(case, traits)


__all__ = ["RECIPES", "Certificate", "CertificateData", "CertificateResult", "KernelTraits", "applicable"]
