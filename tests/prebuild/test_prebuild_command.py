"""`doctor --prebuild`, `--export` and `--import` over stand-ins of the libraries' compilers."""

from __future__ import annotations

import io
import json
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cases import AttentionCase, Request
from harness import environment
from harness.cli.main import main
from harness.errors import UsageError
from harness.prebuild import parcel
from harness.prebuild.flash_attention_jit import compile_one
from harness.prebuild.recording import flash_attention_4_calls
from harness.prebuild.targets import flash_attention_4_environment, target_archs

Forget = Callable[[], object]
CASE = AttentionCase(requests=(Request(9, 3),), window_left=4)


def doctor(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["attn-harness", "doctor", *arguments])
    with pytest.raises(SystemExit) as end:
        main()
    assert isinstance(end.value.code, int)
    return end.value.code


def test_builds_what_is_missing_and_says_what_is_there(
    forget: Forget, libraries: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ("--prebuild", "quick", "-a", "flashinfer-paged-fa2", "--arch", "9.0", "--jobs", "3", "--json")
    assert doctor(monkeypatch, *asked) == 0
    told = capsys.readouterr()
    first = json.loads(told.out)
    assert {module["state"] for module in first["flashinfer"]} == {"built"}
    assert "3 modules needed, 3 missing" in told.err
    assert "3/3 built batch_prefill" in told.err
    written = (tmp_path / "workspace" / "cached_ops" / "page" / "page.so").read_text()
    assert written == "page for 9.0a, 3 jobs"
    forget()  # as another process would
    assert doctor(monkeypatch, *asked) == 0
    second = json.loads(capsys.readouterr().out)
    assert {module["state"] for module in second["flashinfer"]} == {"cached"}


def test_one_module_that_does_not_compile_is_told_and_the_others_are_built(
    libraries: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ("--prebuild", "smoke", "-a", "flashinfer-paged-fa2", "--arch", "9.0a")
    assert doctor(monkeypatch, *asked, "--json") == 1
    modules = json.loads(capsys.readouterr().out)["flashinfer"]
    failed = [m for m in modules if m["state"] == "failed"]
    assert failed
    assert all("head_dim_qk_256" in m["module"] and "error: no such tile" in m["error"] for m in failed)
    assert {m["state"] for m in modules if m not in failed} == {"built"}


@pytest.mark.parametrize(
    ("arguments", "environment", "says"),
    [
        ("--prebuild quick -a flashinfer-paged-fa2", {}, "there is no GPU here to ask"),
        ("--prebuild quick -a flashinfer-paged-fa2 --arch hopper", {}, "'hopper' is no compute capability"),
        ("--prebuild quick -a torch-sdpa --arch 9.0a", {}, "none of the adapters that can be built for"),
        ("--prebuild quick -a flashinfer-paged-fa3 --arch 10.0a", {}, "compute capability 9.0 alone"),
        ("--prebuild quick -a flash-attn-4 --arch 8.0", {}, "FLASH_ATTENTION_NUM_SMS"),
        ("--prebuild nope --arch 9.0a", {}, "no suite is called 'nope'"),
        ("--prebuild quick --arch 9.0a --jobs 0", {}, "--jobs is 0"),
        ("--arch 9.0a", {}, "go with --prebuild"),
        ("--prebuild quick --import x.tar.xz", {}, "use one of them"),
        ("--import missing.tar.xz", {}, "cannot read missing.tar.xz"),
        (
            "--prebuild quick -a flashinfer-paged-fa2 --arch 9.0a",
            {"FLASHINFER_NVCC": "/nowhere/nvcc"},
            "3 modules are missing and /nowhere/nvcc is not here to build them: install the CUDA toolkit",
        ),
    ],
)
def test_bad_use_is_one_sentence(
    arguments: str,
    environment: dict[str, str],
    says: str,
    libraries: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert doctor(monkeypatch, *arguments.split()) == 2
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert says in last
    assert last.startswith("attn-harness: ")


def test_without_the_libraries_it_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("harness.prebuild.command._why_not", lambda name, archs: "it is not installed")
    assert doctor(monkeypatch, "--prebuild", "quick", "--arch", "9.0a") == 2
    assert "cannot be built for: it is not installed" in capsys.readouterr().err


# -- from one machine to another -------------------------------------------------------------------
@pytest.fixture
def exported(forget: Forget, libraries: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "out" / "quick.tar.xz"
    asked = ("--prebuild", "quick", "-a", "flashinfer-paged-fa2", "--arch", "9.0a", "--export", str(file))
    assert doctor(monkeypatch, *asked) == 0
    forget()  # as another process would
    monkeypatch.setenv("FLASHINFER_WORKSPACE_BASE", str(tmp_path / "elsewhere"))
    return file


def test_import_lays_out_what_the_library_then_finds(
    forget: Forget, exported: Path, libraries: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert doctor(monkeypatch, "--import", str(exported)) == 0
    assert "flashinfer: 3 files" in capsys.readouterr().out
    assert (libraries / "flashinfer" / "data" / "aot" / "page" / "page.so").read_text().startswith("page for 9.0a")
    forget()  # as another process would
    monkeypatch.setenv("FLASHINFER_NVCC", "/nowhere/nvcc")  # nothing is left to compile
    assert doctor(monkeypatch, "--prebuild", "quick", "-a", "flashinfer-paged-fa2", "--arch", "9.0a", "--json") == 0
    states = {module["state"] for module in json.loads(capsys.readouterr().out)["flashinfer"]}
    assert states == {"ahead of time"}


def test_other_versions_are_refused(
    exported: Path, libraries: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    metadata = next(libraries.glob("flashinfer_python*")) / "METADATA"
    metadata.write_text(metadata.read_text().replace("0.6.18.post1", "0.6.19"))
    environment._versions.cache_clear()
    assert doctor(monkeypatch, "--import", str(exported)) == 2
    assert "built with flashinfer-python 0.6.18.post1, here is 0.6.19" in capsys.readouterr().err
    assert not (libraries / "flashinfer" / "data").exists()


def rewritten(file: Path, change: Any) -> None:
    with tarfile.open(file) as archive:
        bodies = {m.name: archive.extractfile(m).read() for m in archive}  # type: ignore[union-attr]
    change(bodies)
    with tarfile.open(file, "w:xz") as archive:
        for name, body in bodies.items():
            member = tarfile.TarInfo(name)
            member.size = len(body)
            archive.addfile(member, io.BytesIO(body))


PAGE = "flashinfer/page/page.so"


def _manifest(bodies: dict[str, bytes], **changes: Any) -> bytes:
    return json.dumps(json.loads(bodies["manifest.json"]) | changes).encode()


def _only_a_manifest(bodies: dict[str, bytes]) -> None:
    manifest = _manifest(bodies, sha256={})
    bodies.clear()
    bodies["manifest.json"] = manifest


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda b: b.update({PAGE: b[PAGE] + b"x"}), "changed or cut short at 'flashinfer/page/page.so'"),
        (lambda b: b.pop(PAGE), "changed or cut short at 'flashinfer/page/page.so'"),
        (lambda b: b.update({"flashinfer/../../evil.so": b"x"}), "changed or cut short at 'flashinfer/../../evil.so'"),
        (lambda b: b.update({"manifest.json": b'{"parcel_version": 2, "sha256": {}, "versions": {}}'}), "reads 1"),
        (lambda b: b.update({"manifest.json": b"[]"}), "is no parcel"),
        (lambda b: b.pop("manifest.json"), "is no parcel"),
        (lambda b: b.update({"manifest.json": b"[" * 100_000}), "is no parcel"),
        (lambda b: b.update({"manifest.json": _manifest(b, versions=[["a", "b"]])}), "is no parcel"),
        (lambda b: b.update({"manifest.json": _manifest(b, versions={"torch": 2})}), "is no parcel"),
        (lambda b: b.update({"manifest.json": _manifest(b, sha256=[])}), "is no parcel"),
        (_only_a_manifest, "holds no compiled file"),
    ],
)
def test_a_changed_parcel_is_refused_whole(
    change: Any,
    says: str,
    exported: Path,
    libraries: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    rewritten(exported, change)
    assert doctor(monkeypatch, "--import", str(exported)) == 2
    assert says in capsys.readouterr().err
    assert not (libraries / "flashinfer" / "data").exists()


def test_a_name_outside_the_folders_is_refused_though_the_manifest_knows_it(
    exported: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import hashlib

    def change(bodies: dict[str, bytes]) -> None:
        manifest = json.loads(bodies["manifest.json"])
        manifest["sha256"]["flashinfer/../../evil.so"] = hashlib.sha256(b"x").hexdigest()
        bodies["manifest.json"] = json.dumps(manifest).encode()
        bodies["flashinfer/../../evil.so"] = b"x"

    rewritten(exported, change)
    assert doctor(monkeypatch, "--import", str(exported)) == 2
    assert "evil.so" in capsys.readouterr().err


def test_kernels_of_a_library_that_is_not_here_are_refused(exported: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds kernels for flashinfer, which is not here; install flashinfer-python"):
        parcel.unpack(exported, {parcel.FLASH_ATTENTION_4: tmp_path})


@pytest.mark.parametrize("text", ["", "not a tar", "\x1f\x8b"])
def test_another_file_is_no_parcel(
    text: str, libraries: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.tar.xz").write_text(text)
    assert doctor(monkeypatch, "--import", str(tmp_path / "x.tar.xz")) == 2
    assert "is no parcel" in capsys.readouterr().err


# -- FlashAttention 4 ------------------------------------------------------------------------------
def test_a_call_is_compiled_without_data(libraries: Path, tmp_path: Path) -> None:
    from torch._subclasses.fake_tensor import FakeTensor

    with_sinks, windowed = flash_attention_4_calls([CASE.replace(sinks=True), CASE])
    assert compile_one(3, with_sinks).error == "AssertionError: no sinks"
    done = compile_one(4, windowed)
    assert (done.index, done.error) == (4, "")
    assert done.cache == str(tmp_path / "kernels" / ("a" * 64) / "fwd")
    ((q, k, left),) = sys.modules["flash_attn.cute.interface"].calls
    assert isinstance(q, FakeTensor)
    assert (q.device.type, tuple(q.shape), tuple(k.shape[1:]), left) == ("cuda", (3, 8, 64), (16, 2, 64), 4)


def test_kernels_are_compiled_counted_exported_and_laid_out(
    libraries: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(libraries))  # for the compiling processes
    file = tmp_path / "fa4.tar.xz"
    asked = ("--prebuild", "quick", "-a", "flash-attn-4", "--arch", "9.0a", "--jobs", "1", "--json")
    assert doctor(monkeypatch, *asked, "--export", str(file)) == 0
    told = json.loads(capsys.readouterr().out)["flash-attn-4"]
    assert (told["kernels"], told["kernels_compiled"]) == (2, 2)
    assert told["failed"] == []
    monkeypatch.setenv("FLASH_ATTENTION_CUTE_DSL_CACHE_DIR", str(tmp_path / "there"))
    assert doctor(monkeypatch, "--import", str(file)) == 0
    out = capsys.readouterr().out
    assert "flash-attn-4: 2 files" in out
    assert "FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED=1" in out
    assert len(list((tmp_path / "there" / ("a" * 64) / "fwd").glob("*.o"))) == 2


def test_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLASHINFER_CUDA_ARCH_LIST", "8.0 9.0a")
    assert target_archs(None) == ("8.0", "9.0a")
    assert target_archs("10.0") == ("10.0a",)
    assert target_archs("12.0") == ("12.0f",)
    environment = flash_attention_4_environment("9.0a")
    assert environment["FLASH_ATTENTION_ARCH"] == "sm_90"
    assert environment["CUTE_DSL_ARCH"] == "sm_90a"
    assert environment["FLASH_ATTENTION_NUM_SMS"] == "132"


def test_an_export_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nothing to export"):
        parcel.pack(tmp_path / "x.tar.xz", {}, tmp_path, [], "9.0a")
