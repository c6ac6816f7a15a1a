"""The report as one HTML file: no network, no other file, readable on paper."""

from __future__ import annotations

import base64
import json
import math
import zlib
from datetime import UTC, datetime
from importlib import resources
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from harness import __version__
from harness.report.compare import GRID, HIGH, LOW, MAX_ROWS, SideBySide, scatter
from harness.report.model import ReportInput, build_model
from harness.verdict import Verdict

SCRIPTS = ("core.js", "plots.js", "picture.js", "findings.js", "tables.js", "page.js")


def render_report(inputs: ReportInput) -> str:
    """The whole page. What the scripts show travels compressed, as text that no browser takes for markup."""
    model = build_model(inputs)
    text = json.dumps(model, separators=(",", ":"), allow_nan=False)
    packed = base64.b64encode(zlib.compress(text.encode())).decode()
    return _render(
        "report.html.j2",
        title=inputs.title,
        made=_now(),
        data=packed,
        scripts=Markup("\n").join(_static(name) for name in SCRIPTS),
        model=model,
        records=len(model["records"]["case"]),
    )


def render_comparison(both: SideBySide) -> str:
    """Two sets of records side by side, as a page without scripts."""
    cells = scatter(both.pairs)
    seen = both.verdicts
    return _render(
        "compare.html.j2",
        both=both,
        made=_now(),
        release=__version__,
        changed=both.changed,
        limit=MAX_ROWS,
        rows=[verdict for verdict in Verdict if any(pair[0] is verdict for pair in seen)],
        columns=[verdict for verdict in Verdict if any(pair[1] is verdict for pair in seen)],
        adapters=both.adapters(),
        grid=GRID,
        cells=cells,
        most=max((count for _, _, count in cells), default=1),
        ticks=[((math.log10(t) - LOW) / (HIGH - LOW), f"{t:g}") for t in (0.01, 0.1, 1, 10, 100)],
    )


def _now() -> str:
    return f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"


def _static(name: str) -> Markup:
    """A file of ours, to be put into the page as it is."""
    return Markup(resources.files(__package__).joinpath("templates", name).read_text(encoding="utf-8"))


def _render(template: str, **values: Any) -> str:
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    source = resources.files(__package__).joinpath("templates", template).read_text(encoding="utf-8")
    return environment.from_string(source).render(style=_static("report.css"), **values)
