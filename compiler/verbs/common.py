"""Options that several verbs share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

EngineFolder = Annotated[Path, typer.Argument(metavar="ENGINE", help="Engine folder made by `peagle-compile build`.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON on standard output, and nothing else.")]
Threads = Annotated[int | None, typer.Option(min=1, help="CPU threads. (default: one per core)", show_default=False)]
