"""Pictures that findings left (an X-ray, errors by row), put into the page itself."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Sequence
from pathlib import Path

from harness.errors import UsageError

MAX_BYTES = 2_000_000  # of all pictures: a report is mailed
_CASE_ID = re.compile(r"(?<![0-9a-f])[0-9a-f]{12}(?![0-9a-f])")


def find_pictures(folders: Sequence[Path]) -> dict[str, list[str]]:
    """case id -> data URLs of the PNG files under `folders`.

    The case is the one whose id is in the picture's name, else the one of case.json beside it. Pictures past
    MAX_BYTES in all are left out. Raises UsageError for a folder that is not there.
    """
    found: dict[str, list[str]] = {}
    room = MAX_BYTES
    for folder in folders:
        if not folder.is_dir():
            raise UsageError(f"there is no folder of findings {folder}.")
        for picture in sorted(folder.rglob("*.png")):
            case_id = _case_of(picture)
            size = picture.stat().st_size
            if case_id is None or size > room:
                continue
            room -= size
            packed = base64.b64encode(picture.read_bytes()).decode()
            found.setdefault(case_id, []).append(f"data:image/png;base64,{packed}")
    return found


def _case_of(picture: Path) -> str | None:
    named = _CASE_ID.search(picture.stem)
    if named is not None:
        return named[0]
    from cases.errors import CaseError
    from cases.schema import AttentionCase

    for beside in sorted(picture.parent.glob("*.json")):
        try:
            body = json.loads(beside.read_text(encoding="utf-8"))
            return AttentionCase.from_json(body.get("case", body)).id
        except (OSError, ValueError, AttributeError, CaseError):
            continue  # another kind of file: versions, an explanation
    return None
