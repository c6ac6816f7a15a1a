"""Drawing an X-ray: text for small cases, a picture for larger ones.

.   neither expected nor seen        #   expected and seen
-   expected and not seen            +   seen and not expected
2   seen twice or more               |   where the new rows begin
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cases.ragged import indptr, query_rows
from cases.schema import AttentionCase
from harness.diagnosis.xray import Attended

TEXT_KEYS = 120  # columns of a request that fit a terminal
TEXT_ROWS = 40
TILE = 64
WINDOW_COLOUR = "#1d8348"  # none of the cells'


def worst_place(attended: Attended) -> tuple[int, int]:
    """The request and query head with most wrong keys (the first ones if none is wrong)."""
    case = attended.case
    wrong = ((attended.times > 0) != attended.expected[:, None]).sum(-1) + attended.unowned
    by_request = torch.zeros((case.num_requests, case.num_qo_heads), dtype=wrong.dtype, device=wrong.device)
    by_request.index_add_(0, query_rows(case, wrong.device).request, wrong)
    request, head = divmod(int(by_request.argmax()), case.num_qo_heads)
    return request, head


def request_block(attended: Attended, request: int, head: int) -> tuple[Tensor, Tensor, list[int]]:
    """expected bool and times int64 [rows, kv_len] of one request and head, and its query positions."""
    case = attended.case
    rows = query_rows(case, attended.times.device)
    mine = torch.nonzero(rows.request == request).flatten()
    start = int(indptr([r.kv_len for r in case.requests], "cpu", torch.int64)[request])
    stop = start + case.requests[request].kv_len
    positions: list[int] = rows.position[mine].tolist()
    return attended.expected[mine, start:stop], attended.times[mine, head, start:stop], positions


def fits_text(case: AttentionCase, request: int) -> bool:
    return case.requests[request].kv_len <= TEXT_KEYS and case.requests[request].extend_len <= TEXT_ROWS


def text_picture(attended: Attended, request: int, head: int) -> list[str]:
    """One line per query row of a request, keys from left to right; `|` stands before the first new key."""
    case = attended.case
    expected, times, positions = request_block(attended, request, head)
    prefix = case.requests[request].prefix_len
    rows = torch.nonzero(query_rows(case, "cpu").request == request).flatten().tolist()
    lines = [f"request {request}, head {head}: # seen as expected, + seen only, - expected only, 2 seen twice"]
    for at, position in enumerate(positions):
        marks = [
            "2" if count > 1 else "#" if count and want else "+" if count else "-" if want else "."
            for want, count in zip(expected[at].tolist(), times[at].tolist(), strict=True)
        ]
        body = "".join(marks[:prefix]) + "|" + "".join(marks[prefix:])
        stale = int(attended.unowned[rows[at], head])
        broken = bool(attended.broken[rows[at], head])
        tail = f"  and {stale} stale slots" if stale else "  no key, or NaN" if broken else ""
        lines.append(f"{position:>6} {body}{tail}")
    return lines


def save_picture(attended: Attended, request: int, head: int, path: Path) -> None:
    """A PNG of one request and head: seen as expected, seen only, expected only; edges drawn in.

    Lines: page edges (dotted), kv tiles of 64 (dashed), the prefix edge (solid), the window's left edge (green).
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.colors import ListedColormap
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch
    from matplotlib.ticker import MaxNLocator

    case = attended.case
    expected, times, positions = request_block(attended, request, head)
    seen = (times > 0).cpu()
    kinds = expected.cpu().long() + 2 * seen.long()  # 0 neither, 1 expected only, 2 seen only, 3 both
    kinds[(times.cpu() > 1)] = 4
    colours = ("#ffffff", "#e8a33d", "#c0392b", "#5b7fa6", "#7d3c98")
    kv_len, prefix = case.requests[request].kv_len, case.requests[request].prefix_len
    figure, axes = pyplot.subplots(figsize=(min(16.0, 4 + kv_len / 40), min(12.0, 2.5 + len(positions) / 12)))
    first = positions[0]
    extent = (-0.5, kv_len - 0.5, positions[-1] + 0.5, first - 0.5)
    colour_map = ListedColormap(colours)
    axes.imshow(kinds.numpy(), cmap=colour_map, vmin=0, vmax=4, aspect="auto", interpolation="nearest", extent=extent)
    _edges(axes, case, request, positions)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("key position")
    axes.set_ylabel("query position")
    axes.set_title(f"{case.name}  {case.id}\nrequest {request}, query head {head}", fontsize=9)
    names = ("neither", "expected, not seen", "seen, not expected", "seen as expected", "seen twice")
    used = sorted(set(kinds.flatten().tolist()) - {0})
    handles: list[Patch | Line2D] = [Patch(color=colours[kind], label=names[kind]) for kind in used]
    if prefix:
        handles.append(Line2D([], [], color="black", linewidth=1.2, label=f"prefix ends at {prefix}"))
    if case.window_left is not None:
        handles.append(Line2D([], [], color=WINDOW_COLOUR, linewidth=1.2, label="window's left edge"))
    axes.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncol=4, fontsize=8, frameon=False)
    image = io.BytesIO()  # written at once: a library that writes itself may not say that a disk is full
    try:
        figure.savefig(image, format=path.suffix.removeprefix(".") or "png", dpi=110, bbox_inches="tight")
    finally:
        pyplot.close(figure)
    path.write_bytes(image.getvalue())


def _edges(axes: Any, case: AttentionCase, request: int, positions: list[int]) -> None:
    kv_len, prefix = case.requests[request].kv_len, case.requests[request].prefix_len
    if case.page_size > 1 and kv_len / case.page_size <= 64:
        for edge in range(case.page_size, kv_len, case.page_size):
            axes.axvline(edge - 0.5, color="0.6", linewidth=0.5, linestyle=":")
    if kv_len / TILE <= 64:
        for edge in range(TILE, kv_len, TILE):
            axes.axvline(edge - 0.5, color="0.4", linewidth=0.6, linestyle="--")
    if prefix:
        axes.axvline(prefix - 0.5, color="black", linewidth=1.2)
    if case.window_left is not None:
        keys, rows = window_edge(case.window_left, positions)
        axes.plot(keys, rows, color=WINDOW_COLOUR, linewidth=1.2)


def window_edge(window_left: int, positions: list[int]) -> tuple[list[float], list[float]]:
    """The corners of the line that has the window's first key on its right in every row: x and y of a picture whose
    cells are centred at whole numbers."""
    left = [max(0, position - window_left) - 0.5 for position in positions]
    return [x for x in left for _ in range(2)], [y for p in positions for y in (p - 0.5, p + 0.5)]
