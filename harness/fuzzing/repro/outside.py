"""A repro of an adapter that came as a file: the file is copied beside it, with stand-ins for what it names."""

from __future__ import annotations

import dataclasses
import textwrap
from enum import Enum

from cases.schema import AttentionCase

ADAPTER = "adapter.py"  # what the copied file is called
STAND_IN = "stand_in.py"
LEFT_OUT = ("requests", "execution")


def outside_text(case: AttentionCase, class_name: str) -> str:
    """Runs the adapter on a stand-in for the batch."""
    fields = {f.name: getattr(case, f.name) for f in dataclasses.fields(case) if f.name not in LEFT_OUT}
    plain = {name: str(value) if isinstance(value, Enum) else value for name, value in fields.items()}
    given = ", ".join(f"{name}={value!r}" for name, value in plain.items())
    listed = textwrap.fill(f"FIELDS = dict({given})", 118, subsequent_indent="    ", break_on_hyphens=False)
    return f"""
{listed}
kernel = {class_name}()
batch = Batch(Case(requests=REQUESTS, **FIELDS), q, K, V, k_pool, v_pool, PAGES)
out = kernel.run(kernel.plan(batch), batch).out"""
