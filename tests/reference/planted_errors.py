"""Planted errors: copies of the reference with one line changed.

Each is the text of the modules of `references/` that golden attention is made of, with an exact replacement, run as
modules of their own, so that the copy follows the original and a replacement that no longer fits is
an error, not a mutant that quietly equals the truth.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

import references
from cases.ragged import query_rows
from cases.recipes import LogicalData
from cases.schema import AttentionCase
from references.oracle.judge import Judge


@dataclass(frozen=True)
class Mutant:
    """name; file of `references/` that is changed; the text that goes, and the text that comes."""

    name: str
    file: str
    old: str
    new: str


MUTANTS = (
    Mutant(
        "window one key too long",
        "visibility.py",
        "(rows.position - case.window_left).clamp(min=0)",
        "(rows.position - case.window_left - 1).clamp(min=0)",
    ),
    Mutant(
        "window one key too short",
        "visibility.py",
        "(rows.position - case.window_left).clamp(min=0)",
        "torch.minimum(rows.position - case.window_left + 1, rows.position).clamp(min=0)",
    ),
    Mutant(
        "mask by local position",
        "tiles.py",
        'visible_interval(case, query_rows(case, "cpu"))',
        'visible_interval(case, query_rows(case.replace(requests=[(0, r.extend_len) for r in case.requests]), "cpu"))',
    ),
    Mutant(
        "softcap after the mask",
        "golden.py",
        "        w = passes.weigh(",
        # cap * tanh(-inf / cap)
        "        s = s.masked_fill(s == -torch.inf, -(case.logits_soft_cap or torch.inf))\n        w = passes.weigh(",
    ),
    Mutant(
        "softcap before the scale",
        "golden.py",
        "return s if cap is None else cap * torch.tanh(s / cap)",
        "scale = case.scale * case.k_scale\n    return s if cap is None else cap * torch.tanh(s / scale / cap) * scale",
    ),
)


COPIED = ("visibility", "tiles", "golden")  # each imports those before it


@contextmanager
def planted(mutant: Mutant) -> Iterator[Judge]:
    """The mutant as a judge of the oracle. Raises AssertionError if the text to change is not there once."""
    root = Path(references.__path__[0])
    modules = {}
    for name in COPIED:
        text = (root / f"{name}.py").read_text(encoding="utf-8")
        if mutant.file == f"{name}.py":
            assert text.count(mutant.old) == 1, f"references/{mutant.file} no longer holds {mutant.old!r} once"
            text = text.replace(mutant.old, mutant.new)
        for copied in COPIED:
            text = text.replace(f"from references.{copied} import", f"from planted_{copied} import")
        module = types.ModuleType(f"planted_{name}")
        sys.modules[module.__name__] = module
        exec(compile(text, f"planted {name}: {mutant.name}", "exec"), module.__dict__)
        modules[name] = module

    def out(case: AttentionCase, data: LogicalData) -> Tensor:
        result: Tensor = modules["golden"].golden_attention(case, data).out
        return result

    def interval(case: AttentionCase) -> tuple[Tensor, Tensor]:
        result: tuple[Tensor, Tensor] = modules["visibility"].visible_interval(case, query_rows(case, "cpu"))
        return result

    try:
        yield Judge(out, interval)
    finally:
        for name in modules:
            sys.modules.pop(f"planted_{name}", None)
