"""The example of docs/reading-a-failure.md is what its command prints."""

import re

from test_readme import ROOT, attn_harness

PAGE = (ROOT / "docs" / "reading-a-failure.md").read_text()
ROUNDED = re.compile(r"(error|max-abs-diff) \d\.\d+")  # of low-precision outputs: the last digits are a machine's own


def lines(text: str) -> list[str]:
    return [ROUNDED.sub(r"\1 #", line.rstrip()) for line in text.splitlines() if line.strip()]


def test_the_example_is_what_its_command_prints(tmp_path) -> None:
    example = [line[4:] for line in PAGE[: PAGE.index("Line by line:")].splitlines() if line.startswith("    ")]
    command = example.pop(0).split()
    assert command[0] == "attn-harness"
    done = attn_harness(tmp_path, *command[1:])
    assert done.returncode == 1, done.stderr
    findings = done.stdout[done.stdout.index("\nWRONG") : done.stdout.index("\nnot supported")]
    assert lines("\n".join(example)) == lines(findings)
