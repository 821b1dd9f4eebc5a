"""The ``peagle-compile`` program: its verbs, its exit codes, and what it says when something goes wrong."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence
from typing import Annotated, NoReturn

import typer

from .console import interrupts
from .console.printing import ClosedPipe, report_failure
from .verbs.build import build
from .verbs.doctor import doctor
from .verbs.export import export
from .verbs.inspect import inspect
from .verbs.models import models
from .verbs.quantize import quantize
from .verbs.run import run
from .verbs.verify import verify

EXIT_CODES = (
    "Exit codes: 0 ok, 1 unexpected fault, 2 usage, 3 environment, "
    "4 verification failed, 5 build failed, 130 interrupted."
)

app = typer.Typer(
    name="peagle-compile",
    help="Turn a language model and its P-EAGLE drafter into an engine, and run it.",
    epilog=EXIT_CODES,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for verb in (build, export, quantize, run, verify, inspect, models, doctor):
    app.command(epilog=EXIT_CODES)(verb)


def _version(is_asked: bool) -> None:
    if is_asked:
        from importlib.metadata import version

        print(version("peagle-compile"))
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _program(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


def main() -> NoReturn:
    """Entry point of the ``peagle-compile`` command."""
    interrupts.watch()
    gc.set_threshold(100_000, 50, 100)  # else torch's many objects are walked through again and again
    sys.exit(run_cli(sys.argv[1:]))


def run_cli(arguments: Sequence[str]) -> int:
    """Run the command line; returns its exit code. Errors are told on standard error, never raised."""
    try:
        code = app(list(arguments), prog_name="peagle-compile", standalone_mode=False)
        sys.stdout.flush()
    except (BrokenPipeError, ClosedPipe):  # `peagle-compile ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        return report_failure(error, as_json="--json" in arguments)
    return code if isinstance(code, int) else 0
