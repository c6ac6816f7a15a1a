"""The ledger knows the FlashAttention findings: their cases where they fail, and no neighbour that is right."""

from pathlib import Path

from cases.corpus_io import load_case_file
from harness.gate.ledger import read_ledger

REPORTS = Path(__file__).resolve().parents[2] / "reports"
LEDGER = read_ledger(REPORTS / "known_failures.toml")
WINDOW = load_case_file(REPORTS / "findings" / "flash-attn-3-window-unmasked-block" / "case.json")
PAGED = load_case_file(REPORTS / "findings" / "flash-attn-4-paged-tile-of-144" / "case.json")


def test_the_unmasked_block_is_known_and_its_neighbours_are_not():
    assert LEDGER.known(WINDOW, "flash-attn-3", {"vllm": "0.22.0"})
    assert LEDGER.known(WINDOW, "flash-attn-3", {"vllm": "0.23.0"}) == ()
    assert LEDGER.known(WINDOW, "flash-attn-2", {"vllm": "0.22.0"}) == ()
    assert LEDGER.known(WINDOW.replace(window_left=241), "flash-attn-3", {"vllm": "0.22.0"}) == ()


def test_the_tile_of_144_is_known_where_it_is_used():
    version = {"flash-attn-4": "4.0.0b36"}
    assert LEDGER.known(PAGED, "flash-attn-4", version)
    assert LEDGER.known(PAGED.replace(head_dim_qk=80, head_dim_vo=80, page_size=16), "flash-attn-4", version)
    assert LEDGER.known(PAGED, "flash-attn-4", {"flash-attn-4": "4.0.0b37"}) == ()
    for right in ({"causal": True}, {"window_left": 20}, {"page_size": 144}, {"head_dim_qk": 128, "head_dim_vo": 128}):
        assert LEDGER.known(PAGED.replace(**right), "flash-attn-4", version) == ()
