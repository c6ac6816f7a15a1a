"""The console that commands print their tables to: as wide as a terminal, and as wide as it takes elsewhere.

A program, a log or a file gets every name whole: rich would cut a table to 80 columns there, and a name that ends in
"..." can neither be searched for nor typed again. Markup is off: what is printed holds words of adapters, and of
packages such as `attn-harness[test]`.
"""

from __future__ import annotations

import sys

from rich.console import Console

UNBOUNDED = 100_000  # columns: wider than any line


def make_console(*, stderr: bool = False, least: int = 0) -> Console:
    """A console on standard output (or error). `least`: columns that a table needs, on a narrower terminal too."""
    stream = sys.stderr if stderr else sys.stdout
    if not stream.isatty():  # asked here: with FORCE_COLOR rich takes everything for a terminal
        return Console(stderr=stderr, width=UNBOUNDED, markup=False)
    console = Console(stderr=stderr, markup=False)
    return console if console.width >= least else Console(stderr=stderr, width=least, markup=False)
