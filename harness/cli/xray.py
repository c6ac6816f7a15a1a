"""`attn-harness xray`: which keys each query really attended to."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Annotated

import typer

from cases.schema import AttentionCase
from harness.cli.apart import AdapterDied, Answer
from harness.cli.explain import CaseArgument, OneAdapter, PlantedFault, find_case, finish, make_examiner
from harness.diagnosis.rendering import fits_text, save_picture, text_picture, worst_place
from harness.diagnosis.xray import LEVEL, attended_matrix
from harness.diagnosis.xray_words import row_differences, say_differences
from harness.errors import UsageError
from harness.running.asking import prepare
from harness.running.examine import AdapterFailure, DoesNotFit


def xray(
    case: CaseArgument,
    adapter: OneAdapter,
    fault: PlantedFault = None,
    request: Annotated[int | None, typer.Option(help="Draw this request (default: the one most wrong).")] = None,
    head: Annotated[int | None, typer.Option(help="Draw this query head.")] = None,
    picture: Annotated[Path | None, typer.Option("--picture", help="Write a PNG here.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what each wrong row attended to as JSON.")] = False,
) -> None:
    """Recover from outputs alone which keys each query attended to, and draw it against what it should see.

    Exit code 1 if any row attended to other keys, or the adapter crashed.

    Examples:

    - `attn-harness xray d68d61db84db --adapter flash-attn-3@emulated --fault window-one-too-wide --picture xray.png`
    - `attn-harness xray reports/failures/0123456789ab.json --adapter flash-attn-4 --json`
    """
    found = find_case(case)
    # The adapter may leave the folder that a path was given from.
    file = None if picture is None else picture.absolute()
    if file is not None:
        refuse_unwritable(file)
    finish(found, adapter, as_json, lambda: _xray(found, adapter, fault, request, head, file, as_json))


def refuse_unwritable(picture: Path) -> None:
    """Raises UsageError, before the work, where no picture can be written."""
    if picture.is_dir():
        raise UsageError(f"--picture is {picture}, a folder; give the name of a PNG file.")
    if not picture.parent.is_dir():
        raise UsageError(f"--picture is {picture}, and there is no folder {picture.parent}; make it first.")
    if not os.access(picture if picture.exists() else picture.parent, os.W_OK):
        raise UsageError(f"--picture is {picture}, which may not be written; name another place.")


def _xray(
    found: AttentionCase,
    adapter: str,
    fault: str | None,
    request: int | None,
    head: int | None,
    picture: Path | None,
    as_json: bool,
) -> Answer:
    examiner = make_examiner(found, adapter, fault)
    try:
        prepare(examiner.adapter, found)
        attended = attended_matrix(found, lambda data: examiner.run(data, LEVEL)[1].out, examiner.device)
    except ValueError as problem:
        raise UsageError(str(problem)) from None
    except AdapterFailure as failure:
        raise AdapterDied(failure.reason) from None
    except DoesNotFit as problem:
        raise UsageError(f"no X-ray of {examiner.adapter.name}: {problem}.") from None
    worst = worst_place(attended)
    at_request, at_head = worst[0] if request is None else request, worst[1] if head is None else head
    if not 0 <= at_request < found.num_requests or not found.requests[at_request].extend_len:
        raise UsageError(f"--request is {at_request}; the case has no such request with new rows.")
    if not 0 <= at_head < found.num_qo_heads:
        raise UsageError(f"--head is {at_head}; the case has heads 0..{found.num_qo_heads - 1}.")
    differences = row_differences(attended)
    said = say_differences(found, differences, limit=6)
    lines = [
        f"{found.name} ({found.id}) through {examiner.adapter.name}: {len(differences)} of {found.total_q} rows differ"
    ]
    lines += [f"  {line}" for line in said]
    if fits_text(found, at_request):
        lines += text_picture(attended, at_request, at_head)
    elif picture is None:
        lines.append("too large for text; give --picture FILE.png")
    if picture is not None:
        try:
            save_picture(attended, at_request, at_head, picture)
        except (OSError, ValueError) as problem:  # a full disk, or an ending that no picture has
            raise UsageError(f"cannot write {picture}: {problem}.") from None
        lines.append(f"wrote {picture}")
    if as_json:
        body = {"case": found.id, "adapter": examiner.adapter.name, "rows": found.total_q, "lines": said}
        body |= {"differ": [dataclasses.asdict(row) for row in differences]}
        lines = [json.dumps(body | {"picture": None if picture is None else str(picture)})]
    return Answer("\n".join(lines), 1 if differences else 0)
