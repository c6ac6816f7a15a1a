"""`repro.py`: a finding as one file that needs torch and the library at fault, and nothing from here.

inputs   lengths, page table, pool with stale slots, q, k, v     (inputs.py)
call     the library's own call, planned as the adapter plans it  (one text per path)
answer   plain attention in fp64, expected against got            (answer.py)
"""

from __future__ import annotations

from harness.fuzzing.repro.writing import EMULATED, MAX_LINES, NoRepro, repro_text, shows, write_repro

__all__ = ["EMULATED", "MAX_LINES", "NoRepro", "repro_text", "shows", "write_repro"]
