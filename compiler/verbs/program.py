"""The ``peagle-compile`` program: its verbs, help and version."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from .bench import bench
from .build import build
from .cache import cache, list_cache, prune_cache
from .chat import chat
from .doctor import doctor
from .drafter import drafter, drafter_add, drafter_list, drafter_remove
from .export import export
from .flags.help_text import Verb, first_sentence, program
from .inspect import inspect
from .models import models
from .quantize import quantize
from .run import run
from .sagemaker import sagemaker
from .serve import serve
from .triton import triton
from .tune import tune
from .verify import verify

EXIT_CODES = (
    "Exit codes: 0 ok, 1 internal error, 2 usage, 3 environment, "
    "4 verification failed, 5 build failed, 130 interrupted (Ctrl-C), 128 + N ended by signal N."
)
_REFERENCE = "Full reference: docs/cli.md."

app = program(
    name="peagle-compile",
    help="Build and run inference engines for P-EAGLE speculative decoding.",
    epilog=f"{EXIT_CODES} {_REFERENCE}",
    context_settings={"help_option_names": ["-h", "--help"]},
)
for verb in (
    build,
    export,
    quantize,
    run,
    chat,
    serve,
    sagemaker,
    triton,
    verify,
    bench,
    tune,
    inspect,
    models,
    doctor,
):
    app.command(cls=Verb, epilog=f"{EXIT_CODES} {_REFERENCE}", short_help=first_sentence(verb.__doc__))(verb)
_GROUPS: dict[str, tuple[typer.Typer, dict[str, Callable[..., None]]]] = {
    "drafter": (drafter, {"add": drafter_add, "list": drafter_list, "remove": drafter_remove}),
    "cache": (cache, {"list": list_cache, "prune": prune_cache}),
}
for title, (group, parts) in _GROUPS.items():
    for name, part in parts.items():
        text = first_sentence(part.__doc__)
        group.command(name, cls=Verb, epilog=f"{EXIT_CODES} {_REFERENCE}", short_help=text)(part)
    app.add_typer(group, name=title)


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
