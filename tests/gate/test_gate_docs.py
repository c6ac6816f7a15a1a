"""What the documents tell people to type exists: commands, options, and the ledger's example."""

import re
import textwrap
from pathlib import Path

import pytest
import typer

from harness.cli.gate import gate
from harness.cli.report import report
from harness.gate.comparison import ChangeKind
from harness.gate.ledger import read_ledger

ROOT = Path(__file__).parents[2]
DOCS = ("docs/gate.md", "docs/ci/README.md", "docs/ci/github-actions.yml", "docs/ci/gitlab-ci.yml")
COMMANDS = {"gate": gate, "report": report}


def options_of(command: str) -> set[str]:
    app = typer.Typer()
    app.command()(COMMANDS[command])
    return {name for parameter in typer.main.get_command(app).params for name in (*parameter.opts, "--help")}


@pytest.mark.parametrize("document", DOCS)
def test_every_option_in_a_documents_commands_exists(document: str) -> None:
    text = (ROOT / document).read_text()
    found = re.findall(r"attn-harness (gate|report) ([^`\n]*)", text)
    assert found or document.endswith("README.md")
    for command, arguments in found:
        used = {word for word in arguments.split() if re.fullmatch(r"--?[a-z][a-z-]*", word)}
        assert used <= options_of(command), f"{document}: attn-harness {command} {arguments}"


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
