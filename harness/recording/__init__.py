"""From production to a case: batches that a serving process sees, written as case files (docs/sglang.md)."""
