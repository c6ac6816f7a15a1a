"""What the documents tell people to type exists: commands, options, and the ledger's example."""

import re
import textwrap
import tomllib
from pathlib import Path

import pytest
import typer
import yaml

from harness.cli.fuzz import fuzz
from harness.cli.gate import gate
from harness.cli.report import report
from harness.gate.comparison import ChangeKind
from harness.gate.ledger import read_ledger

ROOT = Path(__file__).parents[2]
DOCS = ("docs/gate.md", "docs/ci/README.md", "docs/ci/github-actions.yml", "docs/ci/gitlab-ci.yml")
COMMANDS = {"gate": gate, "report": report, "fuzz": fuzz}
CI = ("github-actions.yml", "gitlab-ci.yml")


def options_of(command: str) -> set[str]:
    app = typer.Typer()
    app.command()(COMMANDS[command])
    return {name for parameter in typer.main.get_command(app).params for name in (*parameter.opts, "--help")}


@pytest.mark.parametrize("document", DOCS)
def test_every_option_in_a_documents_commands_exists(document: str) -> None:
    text = (ROOT / document).read_text()
    found = re.findall(r"attn-harness (gate|report|fuzz) ([^`\n]*)", text)
    assert found or document.endswith("README.md")
    for command, arguments in found:
        used = {word for word in arguments.split() if re.fullmatch(r"--?[a-z][a-z-]*", word)}
        assert used <= options_of(command), f"{document}: attn-harness {command} {arguments}"


@pytest.mark.parametrize("document", [*DOCS, "gate --help", "report --help"])
def test_examples_do_not_write_a_baseline_that_the_project_comes_with(document: str) -> None:
    words = document.split()
    text = COMMANDS[words[0]].__doc__ or "" if words[-1] == "--help" else (ROOT / document).read_text()
    shipped = {path.stem for path in (ROOT / "reports/baselines").glob("*.jsonl")}
    named = re.findall(r"(?:--baseline|BASELINE:) ([\w-]+)", text)
    assert named
    assert shipped
    assert not shipped & {*named}


def test_the_ledgers_example_is_a_good_entry(tmp_path: Path) -> None:
    text = (ROOT / "docs/gate.md").read_text()
    (block,) = re.findall(r"\n\n((?:    .*\n|\n)*    \[\[known\]\]\n(?:    .*\n)+)", text)
    path = tmp_path / "known.toml"
    path.write_text(textwrap.dedent(block))
    (entry,) = read_ledger(path).entries
    assert entry.reference == "flashinfer-ai/flashinfer#4972"


def test_the_gates_rules_are_documented() -> None:
    text = (ROOT / "docs/gate.md").read_text()
    assert all(f"| {kind} |" in text for kind in ChangeKind)


# -- continuous integration ----------------------------------------------------------------------
def scripts_of(name: str) -> dict[str, str]:
    """Each job's shell commands."""
    body = yaml.safe_load((ROOT / "docs/ci" / name).read_text())
    if "jobs" in body:
        return {job: "\n".join(step.get("run", "") for step in d["steps"]) for job, d in body["jobs"].items()}
    jobs = {job: d["script"] for job, d in body.items() if isinstance(d, dict) and "script" in d}
    lines = {
        job: [line for part in s for line in (part if isinstance(part, list) else [part])] for job, s in jobs.items()
    }
    return {job.removeprefix("attention-"): "\n".join(script) for job, script in lines.items()}


@pytest.mark.parametrize("name", CI)
def test_ci_judges_the_build_under_review_beside_a_harness_that_replaces_nothing(name: str) -> None:
    scripts = scripts_of(name)
    assert list(scripts) == ["build", "shard", "judge", "fuzz"]
    for job in ("shard", "judge", "fuzz"):
        installs = re.findall(r"pip install (.*)", scripts[job])
        assert any(re.search(r"--no-deps -e \.\.?/attn-harness", install) for install in installs), job
        for install in installs:  # what may bring its dependencies is the small packages alone
            assert "--no-deps" in install or re.match(r"(\$HARNESS_NEEDS|'hypothesis)", install), (job, install)
    assert "pip wheel --no-deps" in scripts["build"]
    assert "wheels/*.whl" in scripts["shard"]
    assert not re.search(r"torch|whl|cuda", scripts["judge"])


@pytest.mark.parametrize("name", CI)
def test_what_ci_installs_for_the_harness_is_what_it_needs_but_torch(name: str) -> None:
    body = yaml.safe_load((ROOT / "docs/ci" / name).read_text())
    needs = (body.get("env") or body.get("variables"))["HARNESS_NEEDS"].split()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert set(needs) == {need for need in project if not need.startswith("torch")}
