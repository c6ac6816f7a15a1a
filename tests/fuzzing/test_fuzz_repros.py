"""repro.py: short, free of this project, and it shows what it says, in an environment that does not have it."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from cases import AttentionCase
from cases.schema import Execution, KvLayout, Mode, Poison
from harness.diagnosis.explaining import Explanation
from harness.fuzzing.finding import Finding
from harness.fuzzing.findings import write_finding
from harness.fuzzing.repro import MAX_LINES, NoRepro, repro_text, shows
from harness.fuzzing.repro.calls import flash_attention_imports
from harness.fuzzing.repro.writing import FAMILIES
from harness.fuzzing.signature import OVERWRITTEN
from harness.record import Record
from harness.verdict import Verdict

WRONG = Path(__file__).with_name("wrong_kernels.py")
PLAIN = AttentionCase(requests=((5, 3), (0, 2)), window_left=3, page_size=4)  # type: ignore[arg-type]
CASES = {
    "window": PLAIN,
    "cap": PLAIN.replace(window_left=None, logits_soft_cap=2.0, kv_layout=KvLayout.HND, poison=Poison.NAN),
    "sinks": PLAIN.replace(sinks=True, causal=False, poison=Poison.ZERO),
    "graph": PLAIN.replace(
        mode=Mode.DECODE,
        requests=((5, 1), (9, 1)),
        execution=Execution(capture_requests=((3, 1), (4, 1)), num_splits=1, workspace="dirty"),  # type: ignore[arg-type]
    ),
    "fp16": PLAIN.replace(dtype="float16", kv_dtype="float16", recipe="small", page_order="far_end", pool_pages=90),
}


def finding_of(spec: str, case: AttentionCase = PLAIN, **more: object) -> Finding:
    reason = 'error 0.07 at """ and \\ row 6, ' + 20 * "and further on, "
    record = Record(case, spec, Verdict.WRONG, reason, device="cpu").replace(**more)
    told = Explanation(("window-one-too-wide: " + 12 * "one key too many, ",))
    return Finding(spec, "wrong", "window", record, record, told, 3, 32)


@pytest.mark.parametrize("flat", [False, True], ids=["random", "flat"])
@pytest.mark.parametrize(
    ("adapter", "name"),
    [
        (adapter, name)
        for adapter in (*FAMILIES, "flash-attn-4@emulated", f"{WRONG}:Kernel")
        for name in CASES
        if not (name == "sinks" and adapter.startswith("flashinfer"))  # takes none
    ],
)
def test_every_template_is_short_and_stands_alone(adapter: str, name: str, flat: bool) -> None:
    case = CASES[name]
    text = repro_text(finding_of(adapter, case), flat=flat)
    tree = ast.parse(text)
    lines = text.splitlines()
    assert len(lines) <= MAX_LINES
    assert max(map(len, lines)) <= 120
    modules = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    modules |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not [name for name in modules if name.partition(".")[0] in ("harness", "cases", "references")]
    assert "torch" in modules


def undefined(text: str) -> set[str]:
    """Names that a script uses and never binds, builtins apart."""
    import builtins
    import symtable

    table = symtable.symtable(text, "repro.py", "exec")
    bound = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_assigned() or symbol.is_imported()}
    used: set[str] = set()

    def visit(scope: symtable.SymbolTable) -> None:
        for symbol in scope.get_symbols():
            if symbol.is_global() or (scope is table and symbol.is_referenced()):
                used.add(symbol.get_name())
        for child in scope.get_children():
            visit(child)

    visit(table)
    return used - bound - set(dir(builtins)) - {child.get_name() for child in table.get_children()}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@pytest.mark.parametrize("adapter", FAMILIES)
def test_no_name_is_left_undefined(adapter: str, case: AttentionCase) -> None:
    """The libraries are not here to run it; a misspelt name would only show on a GPU."""
    assert undefined(repro_text(finding_of(adapter, case))) == set()


@pytest.mark.parametrize("name", ["flash-attn-3", "flash-attn-2"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_build_that_is_here_is_called(name: str, case: AttentionCase, monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM's functions under the names and arguments of the library's own."""
    assert "vllm" in flash_attention_imports(name, lambda module: module == "vllm")
    for here in (
        (),
        ("vllm", "flash_attn_interface", "flash_attn_2_cuda"),
        ("vllm", "sgl_kernel", "flash_attn_2_cuda"),
    ):
        assert "vllm" not in flash_attention_imports(name, here.__contains__)
    of_vllm = replace(FAMILIES[name], imports=f"import torch\n{flash_attention_imports(name, 'vllm'.__eq__)}")
    monkeypatch.setitem(FAMILIES, name, of_vllm)
    script = repro_text(finding_of(name, case))
    assert len(script.splitlines()) <= MAX_LINES
    ast.parse(script)


@dataclass
class Ran:
    code: int
    out: str


def run_elsewhere(folder: Path, script: str) -> Ran:
    """In a folder of its own, where this project cannot be imported."""
    folder.mkdir(exist_ok=True)
    (folder / "repro.py").write_text(script)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    probe = "import importlib.util as u; raise SystemExit(bool(u.find_spec('harness') or u.find_spec('cases')))"
    if subprocess.run([sys.executable, "-c", probe], cwd=folder, env=environment, check=False).returncode:
        pytest.skip("this project is installed in the environment")
    done = subprocess.run(
        [sys.executable, "repro.py"], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    return Ran(done.returncode, done.stdout + done.stderr)


@pytest.mark.parametrize("adapter", ["torch-sdpa", "torch-flex-eager"])
def test_a_right_library_is_called_right(adapter: str, tmp_path: Path) -> None:
    for name, case in CASES.items():
        if name not in (("window", "fp16") if adapter == "torch-sdpa" else ("cap",)):
            continue
        for flat in (False, True):
            ran = run_elsewhere(tmp_path / f"{name}-{flat}", repro_text(finding_of(adapter, case), flat=flat))
            assert ran.code == 0, ran.out
            assert f"0 of {case.total_q} rows are wrong" in ran.out


@pytest.mark.parametrize("name", ["WindowOneTooLong", "HeadsInterleaved", "LastPartialPageDropped"])
def test_three_findings_show_without_this_project(name: str, tmp_path: Path) -> None:
    case = PLAIN.replace(requests=((9, 2), (3, 1)), page_order="contiguous")
    folder = write_finding(tmp_path, finding_of(f"{WRONG}:{name}", case, adapter=name))
    assert "repro.py was run and shows it." in (folder / "explanation.txt").read_text()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for file in ("adapter.py", "stand_in.py"):
        shutil.copyfile(folder / file, elsewhere / file)
    ran = run_elsewhere(elsewhere, (folder / "repro.py").read_text())
    assert ran.code == 1
    assert "rows are wrong" in ran.out
    assert "expected [" in ran.out
    assert "got      [" in ran.out


@pytest.mark.parametrize("layout", list(KvLayout))
def test_an_overwritten_cache_shows_without_this_project(layout: KvLayout, tmp_path: Path) -> None:
    case = PLAIN.replace(requests=((9, 2), (3, 1)))
    found = replace(finding_of(f"{WRONG}:OverwritesAKey", case), kind=OVERWRITTEN)
    folder = write_finding(tmp_path, found)
    assert "repro.py was run and shows it." in (folder / "explanation.txt").read_text()
    right = replace(found, adapter=f"{WRONG}:Kernel")
    assert "does NOT show it" in (write_finding(tmp_path / "right", right) / "explanation.txt").read_text()
    script = repro_text(replace(found, record=found.record.replace(case=case.replace(kv_layout=layout))))
    assert "overwritten" in script
    ast.parse(script)


def test_a_script_that_shows_nothing_is_said_to(tmp_path: Path) -> None:
    folder = write_finding(tmp_path, finding_of(f"{WRONG}:Kernel", adapter="kernel"))
    assert "does NOT show it" in (folder / "explanation.txt").read_text()
    assert not shows(folder / "repro.py", finding_of("kernel").record)


def test_an_emulated_finding_says_what_its_script_is_worth(tmp_path: Path) -> None:
    folder = write_finding(tmp_path, finding_of("flash-attn-4@emulated", fault="sinks-ignored"))
    script = (folder / "repro.py").read_text()
    assert "Found on an emulation with the fault sinks-ignored planted" in script
    assert "repro.py was not run here" in (folder / "explanation.txt").read_text()
    second = write_finding(tmp_path, finding_of("flash-attn-4@emulated", fault="sinks-ignored"))
    assert second.name == f"{folder.name}-2"


@pytest.mark.parametrize(
    ("finding", "says"),
    [
        (finding_of("sglang-fa3"), "needs more than one library"),
        (
            finding_of("flash-attn-4", PLAIN.replace(kv_dtype="float8_e4m3fn")),
            "an fp8 cache is not written out",
        ),
    ],
)
def test_what_has_no_script_says_why(finding: Finding, says: str, tmp_path: Path) -> None:
    with pytest.raises(NoRepro, match=says):
        repro_text(finding)
    folder = write_finding(tmp_path, finding)
    assert not (folder / "repro.py").exists()
    assert f"no repro.py: {NoRepro.__name__}" not in (folder / "explanation.txt").read_text()
    assert says in (folder / "explanation.txt").read_text()


def test_a_library_on_pythonpath_is_found_and_this_project_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An environment may have its libraries there; without them every script would end before it shows anything."""
    libraries = tmp_path / "libraries"
    libraries.mkdir()
    (libraries / "a_library.py").write_text("WRONG = 'rows are wrong'\n")
    root = Path(__file__).parents[2]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(root), "", str(libraries)]))
    script = tmp_path / "script.py"
    script.write_text("import a_library\nprint(a_library.WRONG)\nraise SystemExit(1)\n")
    record = finding_of("kernel").record
    assert shows(script, record)
    script.write_text(
        "import sys\nprint('rows are wrong', sys.path)\nraise SystemExit(" + repr(str(root)) + " in sys.path)\n"
    )
    assert not shows(script, record)


@pytest.mark.parametrize("verdict", [Verdict.WRONG, Verdict.CRASH])
def test_a_script_whose_library_is_not_there_shows_nothing_and_says_so(
    verdict: Verdict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash above all: an exit that is not clean, for want of the library, is not the crash that was seen."""
    absent = replace(FAMILIES["flashinfer-paged-fa2"], imports="import math\nimport not_a_library as flashinfer, torch")
    monkeypatch.setitem(FAMILIES, "flashinfer-paged-fa2", absent)
    folder = write_finding(tmp_path, finding_of("flashinfer-paged-fa2", device="a GPU", verdict=verdict))
    told = (folder / "explanation.txt").read_text()
    assert "repro.py could not be run here: ModuleNotFoundError: No module named 'not_a_library'." in told


def test_a_script_that_ends_in_an_exception_says_which(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = replace(FAMILIES["torch-sdpa"], imports="raise RuntimeError('no kernel for this')")
    monkeypatch.setitem(FAMILIES, "torch-sdpa", broken)
    folder = write_finding(tmp_path, finding_of("torch-sdpa"))
    told = (folder / "explanation.txt").read_text()
    assert "does NOT show it: it ended with RuntimeError: no kernel for this." in told
