"""What the README promises to someone with a kernel of their own, from a folder outside the project."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from harness.cli.selection import CPU_DEFAULTS, DEFAULT_SUITES

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
BREAK = ("query - case.window_left", "query - (case.window_left + 1)")
EXAMPLE = (ROOT / "docs" / "examples" / "my_kernel.py").read_text()


def test_the_readme_shows_the_example_as_it_is() -> None:
    assert f"```python\n{EXAMPLE}```" in README


def test_links_of_readme_and_docs_lead_somewhere() -> None:
    pages = [ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("reports/**/README.md")]
    links = [(page, link) for page in pages for link in re.findall(r"\]\(([^)#:]+)[)#]", page.read_text())]
    assert links
    assert [(str(page), link) for page, link in links if not (page.parent / link).exists()] == []


def test_the_readme_shows_the_broken_line_as_it_is_tested() -> None:
    broken = next(line for line in EXAMPLE.splitlines() if BREAK[0] in line).replace(*BREAK)
    assert f"```python\n{broken}\n```" in README


def test_the_readme_names_the_defaults() -> None:
    (main_job,) = re.findall(r"The main job is `attn-harness run`: (.*?)\n\n", README, re.DOTALL)
    assert f"suites {' and '.join(f'`{suite}`' for suite in DEFAULT_SUITES)}." in main_job
    assert all(adapter in main_job for adapter in CPU_DEFAULTS)


def attn_harness(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "harness.cli.main", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("change", "code", "says"),
    [
        (None, 0, "PASS"),
        (BREAK, 1, "WRONG"),
    ],
)
def test_an_adapter_outside_is_judged(tmp_path: Path, change: tuple[str, str] | None, code: int, says: str) -> None:
    text = EXAMPLE if change is None else EXAMPLE.replace(*change)
    assert (text != EXAMPLE) == (change is not None)
    (tmp_path / "my_kernel.py").write_text(text)
    done = attn_harness(tmp_path, "run", "--suite", "quick", "--adapter", "my_kernel.py:MyKernel", "--workers", "1")
    assert done.returncode == code, done.stderr
    assert says in done.stdout
    assert list((tmp_path / "reports").glob("run-*.jsonl"))


def test_doctor_checks_an_adapter_outside(tmp_path: Path) -> None:
    (tmp_path / "my_kernel.py").write_text(EXAMPLE)
    done = attn_harness(tmp_path, "doctor", "--adapter", "my_kernel.py:MyKernel")
    assert done.returncode == 0, done.stderr
    assert "follows the adapter protocol" in done.stdout
