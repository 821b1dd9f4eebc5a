"""``peagle-compile triton``."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from ...plugins.errors import UsageError
from ..console.printing import columns, emit, interruptible
from .flags.help_text import DRAFT, RUN
from .flags.shared_flags import EngineFolder, Json, NumDrafts, Threads
from .flags.verbosity import Verbosity, with_verbosity


@interruptible("models written so far are complete, and the same command resumes from them")
@with_verbosity
def triton(
    engine: EngineFolder,
    repository: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Model repository; other models in it are left unchanged.")
    ],
    verbosity: Verbosity,
    name: Annotated[
        str | None, typer.Option(help="Model name. (default: the name of the engine folder)", show_default=False)
    ] = None,
    max_batch_size: Annotated[int, typer.Option(min=1, help="Maximum number of requests that run at once.")] = 4,
    max_queue_size: Annotated[
        int, typer.Option(min=0, help="Maximum number of waiting requests; further requests are refused.")
    ] = 256,
    request_timeout: Annotated[float, typer.Option(min=0.001, help="Time limit of a request, in seconds.")] = 600.0,
    instances: Annotated[int, typer.Option(min=1, help="Copies of the engine per GPU.")] = 1,
    gpus: Annotated[
        str | None, typer.Option(metavar="IDS", help="GPU indices, such as 0,1. (default: 0)", show_default=False)
    ] = None,
    draft: NumDrafts = None,
    load_drafter: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Load this drafter too, so that requests can select it with the input named `draft`. Can be repeated.",
            show_default=False,
            rich_help_panel=DRAFT,
        ),
    ] = None,
    threads: Threads = None,
    link: Annotated[
        bool, typer.Option("--link", help="Link to the engine by a relative path instead of copying it.")
    ] = False,
    engine_path: Annotated[
        str | None,
        typer.Option(
            metavar="PATH", help="Path of the engine on the server, used instead of a copy.", show_default=False
        ),
    ] = None,
    force: Annotated[
        bool,
        typer.Option("--force", help="Replace existing model folders, even edited ones.", rich_help_panel=RUN),
    ] = False,
    as_json: Json = False,
) -> None:
    """Write a model repository for Triton Inference Server.

    The models run in Triton's Python backend, whose Python environment needs this package. By default, the engine is
    copied into the repository, which is then self-contained.

    Example: peagle-compile triton demo-engine --repository models
    """
    from ..deploy.triton.options import RepositoryOptions, name_of
    from ..deploy.triton.repository import write_repository

    if link and engine_path is not None:
        raise UsageError("--link and --engine-path cannot be combined", fix="omit one of them")
    options = RepositoryOptions(
        name=name_of(engine) if name is None else name,
        placing="path" if engine_path is not None else "link" if link else "copy",
        path=engine_path or "",
        max_batch_size=max_batch_size,
        max_queue_size=max_queue_size,
        threads=threads or 0,
        request_timeout=request_timeout,
        instances=instances,
        gpus=_ids(gpus),
        draft=draft or "",
        drafters=tuple(load_drafter or ()),
    )
    with verbosity.work() as progress:
        written = write_repository(engine, repository, options, progress, force=force)
    if as_json:
        emit(
            {
                "repository": str(written.repository),
                "models": list(written.models),
                "changed": list(written.changed),
                "engine": written.engine,
            }
        )
        return
    rows = [
        ("repository", written.repository),
        ("models", ", ".join(written.models)),
        ("engine", engine_path or f"{written.engine} of {written.models[0]}"),
        ("written", ", ".join(written.changed) or "nothing: the repository is up to date"),
        ("next", f"tritonserver --model-repository {shlex.quote(str(written.repository))}"),
    ]
    print(columns(rows))


def _ids(text: str | None) -> tuple[int, ...]:
    if text is None:
        return ()
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) < 5 for part in parts) or len(set(parts)) < len(parts):
        raise UsageError(f"--gpus {text!r} is not a list of GPU indices", fix="use distinct numbers, such as 0,1")
    return tuple(map(int, parts))
