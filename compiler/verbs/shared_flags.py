"""Flags and arguments that are spelt once for all verbs that have them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Force = Annotated[bool, typer.Option("--force", help="Make every step anew.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print the plan (weights, caches, nodes, memory, time) and write nothing.")
]
Gpu = Annotated[
    str | None,
    typer.Option(help="With --dry-run: whether it fits this GPU, for example b200.", show_default=False),
]
EngineFolder = Annotated[Path, typer.Argument(metavar="ENGINE", help="Engine folder made by `peagle-compile build`.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON on standard output, and nothing else.")]
_THREADS = "CPU threads. (default: one for a small model, else one per core)"
Threads = Annotated[int | None, typer.Option(min=1, help=_THREADS, show_default=False)]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress; warnings and errors are still told.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Say more about each step, on standard error.")]
Log = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Add everything that is done and told, with times and versions, to this file.",
        show_default=False,
    ),
]
