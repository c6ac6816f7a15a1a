"""`make setup`: what it installs, and when again. The Python of the venv only notes what it is asked for."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OURS = ("MAKEFLAGS", "MFLAGS", "TORCH_SPEC", "NO_INSTALL", "SEES_GPU", "PYTHON")  # what the Makefile reads
FAKE = """#!/bin/sh
echo "$@" >> "{log}"
"""


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make here")
def test_another_torch_is_installed_over_the_one_that_was_asked_for_before(tmp_path: Path) -> None:
    log = tmp_path / "log"
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(FAKE.format(log=log))
    python.chmod(0o755)

    def installed(**more: str) -> list[str]:
        """The torch that `make setup` installs, if any; what it finds done it leaves alone."""
        log.write_text("")
        inherited = {name: value for name, value in os.environ.items() if name not in OURS}
        asked = ["make", "-C", str(ROOT), "setup", f"VENV={tmp_path / 'venv'}"]
        subprocess.run(asked, env=inherited | more, check=True, capture_output=True)
        return [word for line in log.read_text().splitlines() for word in line.split() if word.startswith("torch")]

    (default,) = installed()
    assert default.startswith("torch==")
    assert installed() == []
    assert installed(TORCH_SPEC="torch==2.11.0") == ["torch==2.11.0"]
    assert installed(TORCH_SPEC="torch==2.11.0") == []
    assert installed() == [default]
    assert installed(TORCH_SPEC="") == []  # the venv's own is kept
    assert "see_packages_of" not in log.read_text()
    assert installed(SEES_GPU="yes", TORCH_SPEC="torch==2.11.0") == ["torch==2.11.0"]
    assert installed(SEES_GPU="yes") == []  # python3's own, which the venv is shown
    assert "tools/see_packages_of.py python3" in log.read_text()
    assert "-m pip install --quiet --disable-pip-version-check -e .[dev]" in log.read_text()


def test_a_venv_is_shown_the_packages_of_another_python(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    asked = [python, "-c", "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"]
    assert subprocess.run(asked, check=False).returncode == 1
    subprocess.run([python, ROOT / "tools" / "see_packages_of.py", sys.executable], check=True, capture_output=True)
    assert subprocess.run(asked, check=False).returncode == 0
