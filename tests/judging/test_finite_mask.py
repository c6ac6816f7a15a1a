"""A finite mask fill is seen: by LURE-, and on data whose scores all lie below it."""

import dataclasses

import torch

from cases import AttentionCase, Request
from harness.adapters.flashinfer import FlashInferPagedFa2
from harness.emulation.flashinfer import EmulatedFlashInfer
from harness.running.examine import examine
from harness.running.options import RunOptions
from harness.verdict import Verdict

CASE = AttentionCase(requests=(Request(40, 5), Request(8, 8)), window_left=31)


class Undeclared(FlashInferPagedFa2):
    """The adapter without its declaration of the -5e4 that FlashInfer 0.6.18 writes into masked scores."""

    masked_score = None


def verdict(version: str, case: AttentionCase) -> tuple[Verdict, set[str]]:
    options = RunOptions(evidence="certificate", rerun=False, explain=False)
    record = examine(case, Undeclared(EmulatedFlashInfer(version)), options, torch.device("cpu"))
    return record.verdict, {e.kind for e in record.evidence if e.passed is False and e.decides}


def test_lure_minus_sees_a_finite_mask_fill() -> None:
    assert verdict("0.6.18.post1", CASE) == (Verdict.WRONG, {"certificate/lure-minus"})
    assert verdict("0.7.0", CASE) == (Verdict.PASS, set())


def test_sunken_data_shows_it_without_a_certificate() -> None:
    sunken = dataclasses.replace(CASE, recipe="sunken")
    got, kinds = verdict("0.6.18.post1", sunken)
    assert got is Verdict.WRONG
    assert "bound" in kinds
    assert verdict("0.7.0", sunken) == (Verdict.PASS, set())
