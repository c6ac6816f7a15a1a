"""The oracle: the references against transformers' own models, caches and masks, on the CPU.

`run_oracle` feeds tiny random models in chunks, records every attention call and compares what the
model computed with golden attention and with the HF-style reference on the same q, k, v.
`compare_masks` compares the visibility rule with transformers' mask functions at every small point.
Importing this package does not import transformers.
"""

from references.oracle.internals import OracleError
from references.oracle.masks import MaskComparison, compare_masks
from references.oracle.models import MODELS
from references.oracle.render import render_markdown
from references.oracle.table import DTYPES, WINDOWS, OracleRow, run_oracle

__all__ = [
    "DTYPES",
    "MODELS",
    "WINDOWS",
    "MaskComparison",
    "OracleError",
    "OracleRow",
    "compare_masks",
    "render_markdown",
    "run_oracle",
]
