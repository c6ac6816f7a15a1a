"""`attn-harness`: the command line. One module per command; this one only ties them together."""

from __future__ import annotations

import importlib
import sys

import typer

from cases.errors import CaseError
from harness import __version__
from harness.cli.interrupts import INTERRUPTED, TERMINATED, nothing_to_keep, sigterm_as_ctrl_c
from harness.cli.outputs import lasting_outputs
from harness.cli.unexpected import unexpected
from harness.errors import KernelFailed, UsageError

BAD_USE = 2

# Command -> "module:function" under harness/cli, in the order that --help shows.
COMMANDS = {
    "doctor": "doctor:doctor",
    "list": "listing:listing",
    "run": "run:run",
    "replay": "replay:replay",
    "explain": "explain:explain",
    "xray": "xray:xray",
    "faults": "faults:faults",
    "fuzz": "fuzz:fuzz",
    "promote": "promote:promote",
    "gate": "gate:gate",
    "report": "report:report",
    "oracle": "oracle:oracle",
    "bisect": "bisect:bisect",
    "bench": "bench:bench",
}

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


def register(wanted: str | None) -> None:
    """Add one command, or all of them for `--help`: a command does not pay for the others' imports."""
    for name, place in COMMANDS.items():
        if wanted in COMMANDS and name != wanted:
            continue
        module, function = place.split(":")
        app.command(name)(getattr(importlib.import_module(f"harness.cli.{module}"), function))


@app.callback(invoke_without_command=True)
def root(version: bool = typer.Option(False, "--version", help="Print the version and stop.")) -> None:
    if version:
        typer.echo(f"attn-harness {__version__}")
        raise typer.Exit


def main() -> None:
    """Run the command line; every mistake, of whoever, ends in one sentence and exit code 2."""
    with sigterm_as_ctrl_c() as termination, lasting_outputs() as outputs:
        code = _run()
        untold = outputs.flush()
        if untold is not None:
            _say(untold)
            code = code or BAD_USE
        if termination.came:
            _say("terminated; what was done so far is kept.")
            code = TERMINATED
        elif code == INTERRUPTED:
            _say("interrupted; what was done so far is kept.")
    sys.exit(code)


def _run() -> int:
    """The exit code."""
    try:
        with nothing_to_keep():  # importing torch takes seconds
            register(next((word for word in sys.argv[1:] if not word.startswith("-")), None))
        code = app(standalone_mode=False)
    except (UsageError, CaseError) as problem:
        _say(str(problem))
        return 1 if isinstance(problem, KernelFailed) else BAD_USE
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as problem:
        # typer brings its own copy of click; what both call a usage problem can show itself.
        if type(problem).__name__ == "Abort":
            return INTERRUPTED
        message = getattr(problem, "format_message", None)
        _say(unexpected(problem) if message is None else _how_to(message()))
        return BAD_USE
    return code if isinstance(code, int) else 0


def _how_to(problem: str) -> str:
    """The problem, "" where no command was named and the help was shown, and whose help says more."""
    command = [word for word in sys.argv[1:2] if word in COMMANDS]
    return f"{problem or 'name a command.'} (`{' '.join(['attn-harness', *command, '--help'])}` shows how.)"


def _say(sentence: str) -> None:
    sys.stderr.write(f"attn-harness: {sentence}\n")


if __name__ == "__main__":
    main()
