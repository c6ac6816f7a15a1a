"""When an error that is still a PASS has grown too much.

A kernel that sums in another order rounds differently, so an error may move a little without anything
being wrong. What it moves by on its own is known: the baseline keeps the spread of its own runs.

    limit = largest + factor * max(spread, RELATIVE_SPREAD * largest)

The relative term stands in for a spread that was never seen: most kernels give the same bits in each
run, and then a change in tile order would be told from a fault by nothing. Another order moves the
largest of many rounding errors by 10-20 %, so a quarter is generous; with the factor of 2 an error
may grow by half.

Errors below one rounding of the output (half an ulp of a value in [1, 2)) are not told apart: at that
size "grown twofold" says that another element was the unlucky one.
"""

from __future__ import annotations

RELATIVE_SPREAD = 0.25
DEFAULT_FACTOR = 2.0

ONE_ROUNDING = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float32": 2.0**-24}

# error over bound: the bound already holds what roundings can do, and a tenth of it is what a correct
# kernel uses at the least (0.2-0.9 is measured).
RATIO_FLOOR = 0.1
# A certificate's residual is the distance to an integer: 1/2 is the verdict's threshold, and 0.1 is
# where weights begin to be called not uniform.
RESIDUAL_FLOOR = 0.1


def growth_limit(largest: float, spread: float, *, factor: float = DEFAULT_FACTOR, floor: float = 0.0) -> float:
    """The largest figure that still counts as the baseline's own (all of one unit, at least 0)."""
    return max(floor, largest + factor * max(spread, RELATIVE_SPREAD * largest))
