"""Putting a repro together, and trying whether it shows what the finding says."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cases.schema import AttentionCase
from harness.fuzzing.finding import Finding
from harness.fuzzing.repro import calls, pools
from harness.fuzzing.repro.answer import answer_text
from harness.fuzzing.repro.inputs import inputs_text
from harness.fuzzing.repro.outside import ADAPTER, STAND_IN, outside_text
from harness.fuzzing.signature import OVERWRITTEN
from harness.loading import is_file_spec
from harness.record import Record
from harness.verdict import Verdict

MAX_LINES = 80
ROWS = "rows are wrong"  # what a script prints: see answer_text
WIDE = 112  # columns of the docstring
SECONDS = 300.0  # a first call may compile
HANG_SECONDS = 60.0  # of a script that is to hang
EMULATED = "@emulated"
ROOT = Path(__file__).resolve().parents[3]
NOT_THERE = ("ModuleNotFoundError", "ImportError")


class Halted(Exception):
    """The session was interrupted while a script was tried."""


class NoRepro(Exception):
    """Why a finding has no stand-alone script, in one sentence."""


@dataclass(frozen=True, slots=True)
class Family:
    """How one library path is called in a script.

    imports: lines; call: the middle part; lse: see answer_text; device: None is that of the record
    in_pool: keys of a request that are in the cache before the call
    """

    imports: str
    call: Callable[[AttentionCase], str]
    lse: str | None
    device: str | None = "cuda"
    in_pool: str = "p + e"


def _flash_attention(name: str, lse: str) -> Family:
    return Family(
        f"import torch\n{calls.flash_attention_imports(name)}", lambda case: calls.flash_attention(case, name), lse
    )


_FLASHINFER = "import math\n\nimport flashinfer\nimport torch"
FAMILIES: dict[str, Family] = {
    "flashinfer-paged-fa2": Family(_FLASHINFER, lambda case: calls.flashinfer_paged(case, "fa2"), "without sink"),
    "flashinfer-paged-fa3": Family(_FLASHINFER, lambda case: calls.flashinfer_paged(case, "fa3"), "without sink"),
    "flashinfer-swa-merge": Family(_FLASHINFER, calls.flashinfer_swa_merge, "without sink", in_pool="p"),
    "flash-attn-4": _flash_attention("flash-attn-4", "with sink"),
    "flash-attn-3": _flash_attention("flash-attn-3", "with sink"),
    "flash-attn-2": _flash_attention("flash-attn-2", "without sink"),
    "torch-sdpa": Family("import torch", calls.torch_sdpa, None, device=None),
    "torch-varlen": Family("import torch", calls.torch_varlen, "without sink"),
    "torch-flex": Family("import torch", lambda case: calls.torch_flex(case, compiled=True), None, device=None),
    "torch-flex-eager": Family("import torch", lambda case: calls.torch_flex(case, compiled=False), None, device=None),
}


def _family(finding: Finding) -> Family:
    if is_file_spec(finding.adapter):
        class_name = finding.adapter.rpartition(":")[2]
        imports = "import torch\nfrom stand_in import Batch, Case, install\n\n"
        imports += f"install()  # stands in for what the file names\nfrom adapter import {class_name}"
        return Family(imports, lambda case: outside_text(case, class_name), None, device=None, in_pool="p")
    name = finding.adapter.removesuffix(EMULATED)
    if name not in FAMILIES:
        raise NoRepro(f"adapter {finding.adapter} needs more than one library; replay the case with this project.")
    return FAMILIES[name]


def repro_text(finding: Finding, *, flat: bool = False, seed: int = 0) -> str:
    """The script. `flat` takes data under which every visible key weighs the same. Raises NoRepro."""
    case = finding.record.case
    if case.kv_dtype != case.dtype:
        raise NoRepro("an fp8 cache is not written out as a script; replay the case with this project.")
    family = _family(finding)
    device = family.device or ("cpu" if finding.record.device in ("", "cpu") else "cuda")
    inputs = inputs_text(case, flat=flat, device=device, seed=seed, in_pool=family.in_pool)
    answer = answer_text(case, flat=flat, lse=family.lse)
    if finding.kind == OVERWRITTEN:
        inputs, answer = inputs + pools.kept_text(), pools.compared_text(case)
    parts = [f'"""{_docstring(finding)}"""', "", family.imports, "", inputs, family.call(case), answer]
    text = "\n".join(parts)
    if len(text.splitlines()) > MAX_LINES:
        text = "\n".join(line for line in text.splitlines() if line)
    return text + "\n"


def _docstring(finding: Finding) -> str:
    """What is wrong, in words that mean something to the library's authors; and what this script rests on."""
    record = finding.record
    versions = ", ".join(f"{name} {version}" for name, version in record.versions.items() if name != "python")
    lines = [f"{record.verdict}: {record.reason}", *finding.explanation.lines[:1]]
    if finding.adapter.endswith(EMULATED):
        planted = f" with the fault {record.fault} planted" if record.fault else ""
        lines.append(f"Found on an emulation{planted}: run on the library, this says whether it has the same bug.")
    elif is_file_spec(finding.adapter):
        lines.append(f"Needs torch, and {ADAPTER} and {STAND_IN} beside this file.")
    lines.append(f"Exit code 1: still wrong. Seen with {versions or 'torch'}.")
    plain = (line.replace('"', "'").replace("\\", "/") for line in lines)  # no message may end the docstring
    return "\n".join(textwrap.shorten(line, WIDE) for line in plain)


@dataclass(frozen=True, slots=True)
class Trial:
    """What a run of a script came to.

    shown: it gave what the finding says: wrong rows, an overwritten cache, or an end that is no clean exit
    raised: the exception that ended it before it had an answer ("ModuleNotFoundError: ..."), or ""
    """

    shown: bool
    raised: str = ""


def shows(
    script: Path, record: Record, python: str = sys.executable, halted: Callable[[], bool] = lambda: False
) -> bool:
    """True if running the script gives what the finding says. See try_script."""
    return try_script(script, record, python, halted).shown


def try_script(
    script: Path, record: Record, python: str = sys.executable, halted: Callable[[], bool] = lambda: False
) -> Trial:
    """Run the script where this project cannot be imported from PYTHONPATH.

    Raises Halted, and ends the script, once `halted` is true.
    """
    limit = HANG_SECONDS if record.verdict is Verdict.TIMEOUT else SECONDS
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as said,
        tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as complaint,
    ):
        run = subprocess.Popen(
            [python, script.name],
            cwd=script.parent,
            env=_environment(),
            stdout=said,
            stderr=complaint,
            start_new_session=True,  # Ctrl-C is for the session, which then ends it
        )
        try:
            code = _code_of(run, time.monotonic() + limit, halted)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(run.pid, signal.SIGKILL)
            run.wait()
        said.seek(0)
        complaint.seek(0)
        told = said.read()
        wrong, raised = any(words in told for words in (ROWS, pools.OVERWRITTEN)), _raised(complaint.read())
    if code is None:
        return Trial(record.verdict is Verdict.TIMEOUT)
    if record.verdict is Verdict.CRASH:
        name = raised.partition(":")[0]
        missing = name in NOT_THERE and name not in record.reason  # the library is not there; it did not crash
        return Trial(code != 0 and not wrong and not missing, raised)
    return Trial(code == 1 and wrong, "" if wrong else raised)


def _environment() -> dict[str, str]:
    """This process's, less this project's folder on PYTHONPATH; the libraries may be found through it."""
    paths = [Path(entry).resolve() for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    others = os.pathsep.join(str(path) for path in paths if path != ROOT)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return environment | {"PYTHONPATH": others} if others else environment


def _raised(complaint: str) -> str:
    """The last line of a traceback, shortened; "" if there is none."""
    if "Traceback (most recent call last)" not in complaint:
        return ""
    return textwrap.shorten(complaint.rstrip().rpartition("\n")[2].rstrip("."), WIDE)


def _code_of(run: subprocess.Popen[bytes], until: float, halted: Callable[[], bool]) -> int | None:
    """The exit code, or None if it has not ended by `until`. Raises Halted."""
    while time.monotonic() < until:
        try:
            return run.wait(timeout=0.2)
        except subprocess.TimeoutExpired:
            if halted():
                raise Halted from None
    return None


def write_repro(
    finding: Finding,
    folder: Path,
    *,
    can_run: bool,
    python: str = sys.executable,
    halted: Callable[[], bool] = lambda: False,
) -> str:
    """Write repro.py into the folder of a finding; returns a sentence that says what it is worth.

    Where it can run, the data are chosen so that it shows the failure: random first, then equal weights.
    """
    script = folder / "repro.py"
    try:
        texts = [
            repro_text(finding, flat=flat, seed=seed) for flat, seed in ((False, 0), (True, 0), (False, 1), (True, 1))
        ]
    except NoRepro as why:
        return f"no repro.py: {why}"
    beside: list[Path] = []
    if is_file_spec(finding.adapter):
        shutil.copyfile(finding.adapter.rpartition(":")[0], folder / ADAPTER)
        shutil.copyfile(Path(__file__).with_name(STAND_IN), folder / STAND_IN)
        beside = [folder / ADAPTER, folder / STAND_IN]
    script.write_text(texts[0], encoding="utf-8")
    if not can_run:
        return "repro.py was not run here; it needs the library on a GPU."
    with tempfile.TemporaryDirectory() as scratch:
        trial = Path(scratch) / script.name
        for file in beside:
            shutil.copyfile(file, trial.parent / file.name)
        for text in texts:
            trial.write_text(text, encoding="utf-8")
            try:
                came_to = try_script(trial, finding.record, python, halted)
            except Halted:
                return "repro.py was not run to its end: the session was interrupted."
            if came_to.shown:
                script.write_text(text, encoding="utf-8")
                return "repro.py was run and shows it."
            if came_to.raised.startswith(NOT_THERE):
                return f"repro.py could not be run here: {came_to.raised}."
    because = f"it ended with {came_to.raised}" if came_to.raised else "the failure needs this project's data or calls"
    return f"repro.py was run and does NOT show it: {because}."
