"""`attn-harness`: the command line. One module per command; this one only ties them together."""

from __future__ import annotations

import sys

import click
import typer

from cases.errors import CaseError
from harness import __version__
from harness.errors import UsageError

BAD_USE = 2

app = typer.Typer(
    name="attn-harness",
    help="Compare GPU attention kernels with a plain-PyTorch reference.\n\n"
    "Exit codes: 0 all right, 1 a finding, 2 bad use or a bad environment.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode="markdown",
)


def _register() -> None:
    # Imported here so that `attn-harness --version` does not pay for torch.
    from harness.cli import doctor, gate, listing, oracle, replay, report, run

    app.command("doctor")(doctor.doctor)
    app.command("list")(listing.listing)
    app.command("run")(run.run)
    app.command("replay")(replay.replay)
    app.command("gate")(gate.gate)
    app.command("report")(report.report)
    app.command("oracle")(oracle.oracle)


@app.callback(invoke_without_command=True)
def _root(version: bool = typer.Option(False, "--version", help="Print the version and stop.")) -> None:
    if version:
        typer.echo(f"attn-harness {__version__}")
        raise typer.Exit()


def main() -> None:
    """Run the command line; every known mistake ends in one sentence and exit code 2."""
    _register()
    try:
        code = app(standalone_mode=False)
    except (UsageError, CaseError) as problem:
        _say(str(problem))
        code = BAD_USE
    except click.ClickException as problem:
        problem.show()
        code = BAD_USE
    except (KeyboardInterrupt, click.Abort):
        _say("interrupted; the records made so far are kept.")
        code = 130
    sys.exit(code if isinstance(code, int) else 0)


def _say(sentence: str) -> None:
    sys.stderr.write(f"attn-harness: {sentence}\n")


if __name__ == "__main__":
    main()
