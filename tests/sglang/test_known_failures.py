"""The ledger knows SGLang's faults by release: each finding's case where it fails, and not where it is fixed."""

from pathlib import Path

import pytest

from cases.corpus_io import load_case_file
from cases.schema import AttentionCase, Mode, Request
from harness.gate.ledger import read_ledger

REPORTS = Path(__file__).resolve().parents[2] / "reports"
LEDGER = read_ledger(REPORTS / "known_failures.toml")
WINDOW = AttentionCase(requests=(Request(40, 50), Request(100, 70)), window_left=31)
DRAFT = AttentionCase(requests=(Request(300, 4), Request(5, 4)), mode=Mode.DRAFT_EXTEND_V2)
FOUND_BY = {
    "sglang-fa3-other-reading": ("sglang-fa3@prefix-seq-lens", "0.5.13"),
    "sglang-flashinfer-softcap-at-run": ("sglang-flashinfer", "0.5.23"),
    "sglang-flashinfer-swa-prefix": ("sglang-flashinfer", "0.5.12"),
    "sglang-flashinfer-verify-window": ("sglang-flashinfer-paged", "0.5.23"),
    "sglang-flashinfer-window-at-run": ("sglang-flashinfer", "0.5.23"),
    "sglang-flex-draft-extend": ("sglang-flex", "0.5.13"),
    "sglang-torch-backends-ignore-softcap-and-window": ("sglang-torch-native", "0.5.23"),
    "sglang-triton-decode-bf16-sum": ("sglang-triton", "0.5.21"),
    "sglang-triton-decode-window": ("sglang-triton", "0.5.23"),
    "sglang-triton-draft-graph-window": ("sglang-triton", "0.5.22"),
    "sglang-window-zero": ("sglang-fa3", "0.5.23"),
}


def found(folder):
    return load_case_file(REPORTS / "findings" / folder / "case.json")


def known(case, adapter, version):
    return LEDGER.known(case, adapter, {"sglang": version})


@pytest.mark.parametrize("folder", sorted(p.name for p in (REPORTS / "findings").glob("sglang-*")))
def test_every_finding_has_its_entry(folder):
    adapter, version = FOUND_BY[folder]
    assert known(found(folder), adapter, version)
    assert known(found(folder), adapter, "0.5.24") == ()


@pytest.mark.parametrize(
    ("case", "adapter", "failing", "fixed"),
    [
        (WINDOW, "sglang-flashinfer-paged@emulated", "0.5.15", "0.5.16"),
        (WINDOW.replace(requests=((40, 5),)), "sglang-flashinfer", "0.5.12", "0.5.13"),
        (WINDOW, "sglang-torch-native", "0.5.12", "0.5.13"),
        (found("sglang-triton-decode-bf16-sum"), "sglang-triton", "0.5.21", "0.5.22"),
        (found("sglang-triton-draft-graph-window"), "sglang-triton", "0.5.22", "0.5.23"),
    ],
)
def test_a_fixed_release_is_not_excused(case, adapter, failing, fixed):
    assert known(case, adapter, failing)
    assert known(case, adapter, fixed) == ()


def test_what_is_right_is_not_excused():
    decode = WINDOW.replace(requests=((31, 1), (5, 1)), mode=Mode.DECODE)
    assert known(decode, "sglang-triton", "0.5.23")  # 32 keys, all in a window of 32, and one is lost
    assert known(decode.replace(requests=((30, 1), (5, 1))), "sglang-triton", "0.5.23") == ()
    assert known(WINDOW, "sglang-triton", "0.5.23") == ()
    assert known(DRAFT, "sglang-fa3", "0.5.13") == ()
    assert known(WINDOW, "sglang-fa3", "0.5.13") == ()
    assert known(WINDOW.replace(window_left=None), "sglang-flashinfer", "0.5.13") == ()


def test_a_crash_that_became_a_wrong_answer_has_its_own_entry():
    verify = WINDOW.replace(requests=((40, 4), (100, 4)), mode=Mode.TARGET_VERIFY)
    assert LEDGER.crashes(verify, "sglang-flashinfer", {"sglang": "0.5.13"}) is not None
    assert LEDGER.crashes(verify, "sglang-flashinfer", {"sglang": "0.5.14"}) is None
    assert known(verify, "sglang-flashinfer", "0.5.14")
