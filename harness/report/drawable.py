"""Evidence that the report can draw, in the form it draws it: small enough to travel in every record.

`row_errors` goes into the measure of a "bound" (or "atol") evidence as "rows"; `xray_evidence` is an
evidence of its own, reported beside the verdict.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from cases.ragged import indptr, query_rows
from cases.schema import AttentionCase
from harness.report.visibility import MAX_ROWS
from harness.verdict import Evidence

if TYPE_CHECKING:
    from harness.diagnosis.xray import Attended

MAX_HEADS = 32
MAX_SPANS = 400  # intervals of one X-ray: what a page can draw and a person can read


def row_errors(case: AttentionCase, ratio: Tensor) -> dict[str, Any]:
    """Error over bound around the worst row: `ratio` is [total_q, num_qo_heads].

    {"request", "first_query" (absolute), "ratio": [[a head each] a row each]}, at most MAX_ROWS rows and
    MAX_HEADS heads; null is NaN or infinity.
    """
    rows = query_rows(case, ratio.device)
    finite = ratio.nan_to_num(nan=torch.inf, posinf=torch.inf)
    worst = int(finite.amax(1).argmax())
    mine = torch.nonzero(rows.request == rows.request[worst])[:, 0]
    begin = max(0, min(int((mine == worst).nonzero()[0]) - MAX_ROWS // 2, len(mine) - MAX_ROWS))
    part = mine[begin : begin + MAX_ROWS]
    table = finite[part][:, :MAX_HEADS].tolist()
    return {
        "request": int(rows.request[worst]),
        "first_query": int(rows.position[part[0]]),
        "ratio": [[None if value == float("inf") else float(f"{value:.3g}") for value in row] for row in table],
    }


def xray_evidence(attended: Attended) -> Evidence:
    """What an X-ray saw, of the request and head with most wrong keys (harness/report/visibility.py draws it)."""
    case = attended.case
    expected = attended.expected[:, None]
    extra = (attended.times > 0) & ~expected
    missing = (attended.times == 0) & expected
    rows = query_rows(case, extra.device)
    wrong = (extra | missing).sum(-1)  # [total_q, num_qo_heads]
    by_request = torch.zeros((case.num_requests, case.num_qo_heads), dtype=wrong.dtype, device=wrong.device)
    by_request.index_add_(0, rows.request, wrong)
    request, head = divmod(int(by_request.argmax()), case.num_qo_heads)
    start = int(indptr([r.kv_len for r in case.requests], "cpu", torch.int64)[request])
    stop = start + case.requests[request].kv_len
    mine = torch.nonzero(rows.request == request)[:, 0]
    measure = {
        "request": request,
        "head": head,
        "wrong_keys": int(wrong.sum()),
        "extra": _spans(extra[mine, head, start:stop], rows.position[mine]),
        "missing": _spans(missing[mine, head, start:stop], rows.position[mine]),
    }
    return Evidence("xray", None, measure, "which keys were attended to", decides=False)


def _spans(marks: Tensor, positions: Tensor) -> list[list[int]]:
    """[query position, first key, last key] of each run of marks: bool [rows, keys]."""
    padded = torch.nn.functional.pad(marks.to(torch.int8), (1, 1))
    step = padded[:, 1:] - padded[:, :-1]
    begins, ends = torch.nonzero(step == 1), torch.nonzero(step == -1)
    runs = zip(begins.tolist(), ends[:, 1].tolist(), strict=True)
    return [[int(positions[row]), first, past - 1] for (row, first), past in runs][:MAX_SPANS]
