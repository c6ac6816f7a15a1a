"""Many rows judged at once: maps of every row and head, worked out on the device and read in one go.

What holds is said in the form of harness/judging/compare.py; what does not is left to it, from the same output.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cases.recipes import LogicalData
from cases.schema import AttentionCase
from harness.adapters.protocol import Adapter, AttentionOutput
from harness.judging.compare import NO_LSE, finite, lse_error, under_atol
from harness.judging.row_errors import row_errors
from harness.judging.tolerances import lse_tolerance
from harness.judging.traits import kernel_traits, row_sum_traits
from harness.judging.where import row_place
from harness.verdict import Evidence
from references.error_bounds import lse_bounds, row_factors, unit_terms
from references.golden import GoldenOutput


@dataclass(frozen=True, slots=True)
class Maps:
    """fp64 [2 or 4, total_q, num_qo_heads], on their way to the host: error, error over bound, and where there is an
    LSE its error and that less its tolerance.

    arrived: when they are there; None where they are
    """

    on_host: Tensor
    arrived: torch.cuda.Event | None

    @classmethod
    def of(
        cls,
        case: AttentionCase,
        adapter: Adapter,
        data: LogicalData,
        golden: GoldenOutput,
        outputs: Sequence[AttentionOutput],
    ) -> Maps | None:
        """Of outputs whose rows are one after another those of `case`, golden with moments; None if only some have an
        LSE.

        The device is given its work and not waited for.
        """
        outs, lses = [each.out for each in outputs], [each.lse for each in outputs if each.lse is not None]
        if lses and len(lses) < len(outputs):
            return None
        out = torch.cat(outs)
        lse = torch.cat([each.double() for each in lses]) if lses else None
        assert golden.moments is not None
        traits = kernel_traits(adapter)
        factors = row_factors(case, golden.moments, traits)
        maps = [*row_errors(out, golden, factors, unit_terms(case, traits))]
        if lse is not None:
            tolerance = lse_tolerance(golden.lse, lse_bounds(case, data, golden, row_sum_traits(adapter)))
            error = lse_error(lse, golden.lse, adapter.lse_base, adapter.empty_row)[2]
            maps += [error, error - tolerance]
        on_host = torch.stack(maps).to("cpu", non_blocking=True)  # into pinned memory
        if out.device.type != "cuda":
            return cls(on_host, None)
        arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
        arrived.record(torch.cuda.current_stream(out.device))
        return cls(on_host, arrived)

    def holding(self, case: AttentionCase, rows: slice, atol: float, *, atol_decides: bool) -> list[Evidence] | None:
        """Evidence of the case whose rows these are, in the form of `judge_own`; None if any fails. Waits for the
        maps."""
        if self.arrived is not None:
            self.arrived.synchronize()
        # In NumPy, which reads a case's few numbers in a fifth of torch's time.
        error, ratio, *of_lse = self.on_host.numpy()[:, rows]
        largest, worst_ratio = float(error.max()), float(ratio.max())
        if not (math.isfinite(largest) and worst_ratio <= 1):
            return None
        flat = dataclasses.replace(under_atol(_place(case, error), largest, atol), decides=atol_decides)
        if atol_decides and not flat.passed:
            return None
        bound = Evidence("bound", True, {"ratio": worst_ratio, "worst": _place(case, ratio), "rows_over": 0})
        if not of_lse:
            return [flat, bound, Evidence("lse", None, message=NO_LSE)]
        lse, excess = of_lse
        if not float(excess.max()) <= 0:
            return None
        measure = {"max_lse_diff": finite(float(lse.max())), "worst": _place(case, excess)}
        return [flat, bound, Evidence("lse", True, measure)]


def _place(case: AttentionCase, by_head: NDArray[np.float64]) -> dict[str, Any]:
    return row_place(case, *divmod(int(by_head.argmax()), case.num_qo_heads))
