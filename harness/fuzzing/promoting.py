"""From a finding to a case of the corpus, which every later run meets again."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from cases.corpus_io import CORPUS_DIR, load_corpus
from cases.schema import AttentionCase
from harness.errors import UsageError
from harness.faults.protocol import FaultClass
from harness.fuzzing.findings import FindingFolder
from harness.record_files import replace_text

PROJECT = "attn-harness"


def promote_finding(
    finding: FindingFolder,
    *,
    name: str | None = None,
    project: str | None = None,
    reference: str | None = None,
    fault_class: str | None = None,
    symptom: str | None = None,
    corpus: Path = CORPUS_DIR,
) -> Path:
    """Write the finding's shrunk case to `corpus`/NAME.json with where it comes from; returns the path.

    Raises UsageError for a name that is taken or no file name, a class that does not exist, or a case that the
    corpus has already.
    """
    about = finding.about
    name = name or _default_name(finding)
    if not re.fullmatch(r"[a-z0-9][a-z0-9.-]*", name):
        raise UsageError(f"{name!r} is no name for a corpus file; use small letters, digits and dashes (--name).")
    path = corpus / f"{name}.json"
    if path.exists():
        raise UsageError(f"{path} exists already; give another --name.")
    twin = next((entry.name for entry in load_corpus(corpus) if entry.case.id == finding.case.id), None)
    if twin is not None:
        raise UsageError(f"the corpus has this case already, as {twin}.")
    classes = [str(known) for known in FaultClass]
    chosen = fault_class or (about.get("class") if about.get("class") in classes else str(FaultClass.OTHER))
    if chosen not in classes:
        raise UsageError(f"--class is {chosen!r}; use one of {', '.join(classes)}.")
    project = project or (reference.split()[0] if reference else PROJECT)
    provenance = {
        "project": project,
        "reference": reference or f"{project} fuzzing session {finding.path.parent.parent.name}",
        "class": chosen,
        "symptom": (symptom or _symptom(about)).partition("\n")[0],
    }
    planted = about.get("planted")
    if planted:
        provenance["note"] = f"Found with the fault {planted} planted in {about.get('name')}."
    replace_text(path, entry_text(finding.case, provenance))
    return path


def _default_name(finding: FindingFolder) -> str:
    adapter = str(finding.about.get("name", "finding"))
    what = finding.about.get("fault") or str(finding.about.get("kind", "failure")).partition(":")[0]
    text = f"{adapter}-{what}-{finding.case.id}".lower()
    return re.sub(r"[^a-z0-9.-]+", "-", text).strip("-.")


def _symptom(about: dict[str, Any]) -> str:
    fault = about.get("fault")
    what = f"as {fault} does" if fault else str(about.get("reason", "fails"))
    return f"{about.get('verdict', 'WRONG')} in {about.get('name')}: {what}"


def entry_text(case: AttentionCase, provenance: dict[str, str]) -> str:
    """A corpus file: one field a line."""

    def block(body: dict[str, Any]) -> str:
        return ",\n".join(f"    {json.dumps(key)}: {json.dumps(value)}" for key, value in body.items())

    return f'{{\n  "case": {{\n{block(case.to_json())}\n  }},\n  "provenance": {{\n{block(provenance)}\n  }}\n}}\n'
