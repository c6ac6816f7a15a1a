"""The regression gate: is it still as right as the baseline says it was?

records + baseline (baseline.py) + ledger of known failures (ledger.py) -> comparison.py -> summary.py
"""
