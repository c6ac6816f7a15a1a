"""Lay out a vLLM release without installing it: `python tools/unpack_vllm.py 0.22.0`.

`.vllm/VERSION/` then holds the wheel's Python tree and an environment of its own (`env/bin/python`) that sees that
tree, the small packages of `.sglang/packages` and the packages of the Python that runs this. The wheel is some
260 MB and is taken with `pip download --no-deps`; its compiled code is left out, but for vLLM's FlashAttention with
`--kernels`, which a GPU runner needs. Nothing outside `.vllm` and `.sglang` is changed, and git ignores both.
"""

from __future__ import annotations

import argparse
import shutil
import zipfile
from pathlib import Path

import unpack_sglang as packages

ROOT = Path(__file__).resolve().parents[1] / ".vllm"
LEFT_OUT = ("benchmarks/", "third_party/deep_gemm/", "third_party/triton_kernels/", "vllm-rs")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="+", help="vLLM releases, such as 0.22.0")
    parser.add_argument("--kernels", action="store_true", help="keep vLLM's FlashAttention extensions (a GPU runner)")
    parser.add_argument("--wheel", type=Path, help="a wheel that is here already")
    options = parser.parse_args()
    ROOT.mkdir(exist_ok=True)
    (ROOT / ".gitignore").write_text("*\n", encoding="utf-8")
    shared = packages.shared_packages()
    for version in options.versions:
        home = ROOT / version
        if not (home / "site" / "vllm" / "v1").is_dir():
            wheels = home / "wheel"
            wheel = options.wheel or packages.download("vllm", version, wheels)
            with zipfile.ZipFile(wheel) as archive:
                kept = [name for name in archive.namelist() if _wanted(name, kernels=options.kernels)]
                archive.extractall(home / "site", kept)
            shutil.rmtree(wheels, ignore_errors=True)
        packages.make_environment(home, "vllm", [home / "site", shared])
        print(f"vLLM {version}: {home / 'env' / 'bin' / 'python'}")


def _wanted(name: str, *, kernels: bool) -> bool:
    top, _, rest = name.partition("/")
    if top != "vllm":
        return top.endswith(".dist-info") and not name.endswith("RECORD")
    if name.endswith(".so"):
        return kernels and rest.startswith("vllm_flash_attn/")
    return not rest.startswith(LEFT_OUT)


if __name__ == "__main__":
    main()
