"""Lay out SGLang releases side by side, without installing them: `python tools/unpack_sglang.py 0.5.12 0.5.13`.

For each version `.sglang/VERSION/` holds the wheel's Python tree and an environment of its own
(`.sglang/VERSION/env/bin/python`) that sees, in this order, that tree, the few packages SGLang's import
wants (`.sglang/packages`, shared), and the packages of the Python that runs this. So two releases can be
compared by naming two interpreters:

    attn-harness run --suite seeds --adapter sglang-torch-native --python .sglang/0.5.12/env/bin/python

SGLang pins a torch of its own and is therefore no extra of this project; its wheel is taken with
`pip download --no-deps`. Nothing outside `.sglang` is changed, and git ignores it.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1] / ".sglang"
# The wheels hold compiled extensions of the HTTP server, which are not needed: any tag will do.
PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in (17, 24, 28, 31, 34, 35, 39)] + ["any"]
LEFT_OUT = ("multimodal_gen", "benchmark", "eval", "cli", "test")
# What SGLang's modules import on the way to an attention backend, beyond torch and transformers.
PACKAGES = (
    *("IPython", "traitlets", "compressed-tensors", "dill", "distro", "gguf", "loguru", "msgspec", "openai"),
    *("opentelemetry-api", "orjson", "partial-json-parser", "pybase64", "pydantic", "sniffio", "starlette"),
    *("pyzmq", "apache-tvm-ffi", "einops", "sentencepiece", "fastapi", "requests", "psutil", "pillow", "aiohttp"),
)
# Triton's interpreter, in which SGLang's index kernels run without a GPU, fails with newer numpy.
PINNED = ("triton==3.6.0", "numpy<2.4")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="+", help="SGLang releases, such as 0.5.13")
    parser.add_argument("--no-packages", action="store_true", help="a machine that has the packages already")
    options = parser.parse_args()
    packages = shared_packages(install=not options.no_packages)
    for version in options.versions:
        _unpack(version, packages)


def shared_packages(*, install: bool = True) -> Path:
    """The folder of the small packages, filled once unless the machine has them already."""
    ROOT.mkdir(exist_ok=True)
    (ROOT / ".gitignore").write_text("*\n", encoding="utf-8")
    packages = ROOT / "packages"
    if install and not (packages / ".complete").exists():
        _install(packages)
    return packages


def download(name: str, version: str, folder: Path) -> Path:
    """The wheel of a release, in `folder`; for any platform, since its compiled code is not used."""
    tags = [argument for tag in PLATFORMS for argument in ("--platform", tag)]
    only = ["--no-deps", "--only-binary=:all:", "--python-version", "3.12", *tags]
    _pip("download", *only, "-d", str(folder), f"{name}=={version}")
    wheel = next(folder.glob(f"{name}-*.whl"), None)
    if wheel is None:
        raise SystemExit(f"pip brought no wheel of {name} {version}.")
    return wheel


def make_environment(home: Path, name: str, paths: list[Path]) -> None:
    """`home`/env: an interpreter that sees `paths`, then the packages of the one that runs this."""
    environment = home / "env"
    if not (environment / "bin" / "python").exists():
        venv.create(environment, with_pip=False, symlinks=True)
    where = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
    text = "".join(f"{path}\n" for path in [*paths, Path(sysconfig.get_paths()["purelib"])])
    (environment / where / f"{name}-tree.pth").write_text(text, encoding="utf-8")


def _pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments]
    if subprocess.run(command, check=False).returncode != 0:
        raise SystemExit(f"pip {arguments[0]} failed for {arguments[-1]}; its own message is above.")


def _install(packages: Path) -> None:
    """The packages with what they need, then the pinned ones; torch is never among them."""
    print(f"installing {len(PACKAGES)} small packages into {packages}, once")
    _pip("install", "--target", str(packages), "--no-deps", *PINNED)
    _pip("install", "--target", str(packages), "--no-deps", "compressed-tensors", "gguf")
    rest = [name for name in PACKAGES if name not in ("compressed-tensors", "gguf")]
    _pip("install", "--target", str(packages), *rest)
    (packages / ".complete").touch()


def _unpack(version: str, packages: Path) -> None:
    home = ROOT / version
    tree = home / "site"
    if not (tree / "sglang" / "srt").is_dir():
        wheels = home / "wheel"
        wheel = download("sglang", version, wheels)
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(tree, [name for name in archive.namelist() if _wanted(name)])
        shutil.rmtree(wheels)
    make_environment(home, "sglang", [tree, packages])
    environment = home / "env"
    print(f"SGLang {version}: {environment / 'bin' / 'python'}")


def _wanted(name: str) -> bool:
    top, _, rest = name.partition("/")
    if top == "sglang":
        return rest.split("/")[0] not in LEFT_OUT and not name.endswith(".so")
    return top.endswith(".dist-info") and not name.endswith("RECORD")


if __name__ == "__main__":
    main()
