"""Comparing Triton kernels with their definitions, in a process of its own: Triton's interpreter is chosen when a
kernel is defined."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


def run_script(script: str, *arguments: str, interpreted: bool = False) -> None:
    """Run Python text that prints "compared" at its end. `interpreted`: its kernels on a CPU; skips without Triton."""
    if interpreted:
        pytest.importorskip("triton", reason="not run: needs Triton")
    environment = {**os.environ, **({"TRITON_INTERPRET": "1"} if interpreted else {})}
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "compared" in done.stdout
