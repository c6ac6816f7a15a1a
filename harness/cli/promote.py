"""`attn-harness promote`: a finding becomes a case of the corpus."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from cases.corpus_io import CORPUS_DIR


def promote(
    finding: Annotated[Path, typer.Argument(help="A finding's folder: reports/fuzz/SESSION/findings/NAME.")],
    name: Annotated[str | None, typer.Option(help="Name of the corpus file (default: adapter, fault and id).")] = None,
    project: Annotated[str | None, typer.Option(help="The project whose bug it is, as in its report.")] = None,
    reference: Annotated[str | None, typer.Option(help="The public report: 'flashinfer PR #673'.")] = None,
    fault_class: Annotated[
        str | None, typer.Option("--class", help="Class of fault (default: the explanation's).")
    ] = None,
    symptom: Annotated[str | None, typer.Option(help="What is seen, in one line.")] = None,
    corpus: Annotated[Path, typer.Option(help="Folder of the corpus.")] = CORPUS_DIR,
    as_json: Annotated[bool, typer.Option("--json", help="Print the file that was written as JSON.")] = False,
) -> None:
    """Put a finding's shrunk case into the corpus, so that every later run meets it.

    Example: `attn-harness promote reports/fuzz/SESSION/findings/NAME --reference 'flashinfer PR #673'`
    """
    from harness.fuzzing.findings import read_finding
    from harness.fuzzing.promoting import promote_finding

    path = promote_finding(
        read_finding(finding),
        name=name,
        project=project,
        reference=reference,
        fault_class=fault_class,
        symptom=symptom,
        corpus=corpus,
    )
    print(json.dumps({"promoted": str(path)}) if as_json else path)
    # Beside the path, which a script may read.
    print(_next(path, corpus), file=sys.stderr)


def _next(path: Path, corpus: Path) -> str:
    if corpus.resolve() != CORPUS_DIR.resolve():
        return f"no suite reads this folder: look at the file, commit it, and run it with --cases {corpus}"
    checkout = CORPUS_DIR.parent.parent
    file = path.resolve().relative_to(CORPUS_DIR.resolve().parent.parent)
    return f"it is in suite `corpus` now, for everyone once it is committed: git -C {checkout} add {file}"
