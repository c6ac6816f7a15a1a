"""What was built, as one file for a machine without a network or a compiler.

A .tar.xz of `manifest.json` (versions, target, a sha256 of each file), `flashinfer/NAME/NAME.so` and
`flash-attn-4/FINGERPRINT/PASS/HASH.o`. Laying it out never trusts a name or a byte that the manifest does not know.
"""

from __future__ import annotations

import hashlib
import io
import json
import lzma
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from harness.environment import installed_versions
from harness.errors import UsageError

PARCEL_VERSION = 1
MANIFEST = "manifest.json"
FLASHINFER = "flashinfer"
FLASH_ATTENTION_4 = "flash-attn-4"
# A compiled file only fits the versions that it was compiled with; the library loads it without asking.
PACKAGES = {
    FLASHINFER: ("flashinfer-python", "apache-tvm-ffi"),
    FLASH_ATTENTION_4: ("flash-attn-4", "nvidia-cutlass-dsl", "apache-tvm-ffi"),
}
NAMES = {
    FLASHINFER: re.compile(r"flashinfer/([A-Za-z0-9_]+)/\1\.so"),
    FLASH_ATTENTION_4: re.compile(r"flash-attn-4/[0-9a-f]{64}/[a-z0-9_]+/[0-9a-f]{64}\.o"),
}


def _kind(name: str) -> str | None:
    return next((kind for kind, pattern in NAMES.items() if pattern.fullmatch(name)), None)


def _versions(kinds: Iterable[str]) -> dict[str, str]:
    """Versions of what the files depend on; FlashAttention 4's fingerprint also holds Python's."""
    packages = tuple(sorted({package for kind in kinds for package in PACKAGES[kind]}))
    found = installed_versions(packages)
    del found["python"]
    if FLASH_ATTENTION_4 in kinds:
        found["python"] = ".".join(map(str, sys.version_info[:2]))
    return found | {"machine": platform.machine()}


def pack(path: Path, modules: Mapping[str, Path], kernel_root: Path, kernel_files: Iterable[Path], arch: str) -> int:
    """Write the parcel; `modules` by name, `kernel_files` under `kernel_root`. The number of files in it."""
    files = {f"{FLASHINFER}/{name}/{name}.so": library for name, library in sorted(modules.items())}
    files |= {f"{FLASH_ATTENTION_4}/{file.relative_to(kernel_root)}": file for file in sorted(kernel_files)}
    if not files:
        raise UsageError("there is nothing to export: nothing of what the suite needs is there.")
    bodies = {name: _stripped(file) for name, file in files.items()}
    manifest = {
        "parcel_version": PARCEL_VERSION,
        "arch": arch,
        "versions": _versions({kind for name in files if (kind := _kind(name))}),
        "sha256": {name: hashlib.sha256(body).hexdigest() for name, body in bodies.items()},
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(path, "w:xz") as archive:
            for name, body in {MANIFEST: json.dumps(manifest, indent=1).encode(), **bodies}.items():
                member = tarfile.TarInfo(name)
                member.size, member.mode = len(body), 0o644
                archive.addfile(member, io.BytesIO(body))
    except OSError as problem:
        raise UsageError(f"cannot write {path}: {problem.strerror}.") from None
    return len(files)


def _stripped(file: Path) -> bytes:
    """The file's bytes; a shared library without the symbols that only a debugger reads, where `strip` is there."""
    tool = shutil.which("strip")
    if tool is None or file.suffix != ".so":
        return file.read_bytes()
    with tempfile.TemporaryDirectory() as folder:
        small = Path(folder) / file.name
        done = subprocess.run(
            [tool, "--strip-unneeded", "-o", str(small), str(file)], capture_output=True, check=False, timeout=120
        )
        return small.read_bytes() if done.returncode == 0 else file.read_bytes()


def unpack(path: Path, folders: Mapping[str, Path]) -> dict[str, int]:
    """Lay a parcel out: `folders` by kind (FlashInfer's ahead-of-time folder, FlashAttention 4's cache root).

    The number of files laid out, by kind. Raises UsageError for what is no parcel, was made with other versions, or
    was changed on the way; then nothing is laid out.
    """
    manifest, bodies = _read(path)
    kinds = {kind for name in bodies if (kind := _kind(name))}
    for kind in sorted(kinds - set(folders)):
        raise UsageError(f"{path} holds kernels for {kind}, which is not here; install {PACKAGES[kind][0]} first.")
    _refuse_other_versions(path, manifest["versions"], _versions(kinds))
    counts = dict.fromkeys(sorted(kinds), 0)
    for name, body in bodies.items():
        kind = str(_kind(name))
        target = folders[kind] / name.removeprefix(f"{kind}/")
        temporary = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_bytes(body)
            temporary.replace(target)
        except OSError as problem:
            raise UsageError(f"cannot write {target}: {problem.strerror}.") from None
        counts[kind] += 1
    return counts


def _read(path: Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The manifest and the files that it names, each checked."""
    try:
        with tarfile.open(path, "r:xz") as archive:
            found = {m.name: file.read() for m in archive if m.isfile() and (file := archive.extractfile(m))}
        manifest = json.loads(found.pop(MANIFEST))
        version, sums = manifest["parcel_version"], _texts(manifest["sha256"])
        _texts(manifest["versions"])
    except OSError as problem:
        raise UsageError(f"cannot read {path}: {problem.strerror or problem}.") from None
    except (tarfile.TarError, lzma.LZMAError, EOFError, KeyError, TypeError, ValueError, RecursionError):
        raise UsageError(f"{path} is no parcel of `attn-harness doctor --prebuild SUITE --export FILE`.") from None
    if version != PARCEL_VERSION:
        raise UsageError(
            f"{path} has parcel_version {version!r}, this release reads {PARCEL_VERSION}; export it again."
        )
    for name in sorted(set(found) | set(sums)):
        if name not in found or hashlib.sha256(found[name]).hexdigest() != sums.get(name) or _kind(name) is None:
            raise UsageError(f"{path} was changed or cut short at {name!r}; export it again.")
    if not found:
        raise UsageError(f"{path} holds no compiled file; export it again.")
    return manifest, found


def _texts(value: Any) -> dict[str, str]:
    """A JSON object of texts. Raises TypeError for anything else."""
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise TypeError(f"{value!r:.80} is no object of texts")
    return value


def _refuse_other_versions(path: Path, made: Mapping[str, str], here: Mapping[str, str]) -> None:
    for package in sorted(set(made) | set(here)):
        if made.get(package) != here.get(package):
            raise UsageError(
                f"{path} was built with {package} {made.get(package, '(none)')}, here is {here.get(package, 'none')}; "
                "install that version, or export again from an environment like this one."
            )
