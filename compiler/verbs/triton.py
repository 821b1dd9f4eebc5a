"""``peagle-compile triton``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ...plugins.errors import UsageError
from ..console.printing import columns, emit, interruptible
from .flags.shared_flags import EngineFolder, Json, Threads
from .flags.speaks import Voice, speaks


@interruptible("models that were written are whole, and the same command goes on from there")
@speaks
def triton(
    engine: EngineFolder,
    repository: Annotated[
        Path, typer.Option(metavar="FOLDER", help="The model repository; other models in it are left alone.")
    ],
    voice: Voice,
    name: Annotated[
        str | None, typer.Option(help="The model's name. (default: that of the engine's folder)", show_default=False)
    ] = None,
    max_batch_size: Annotated[int, typer.Option(min=1, help="Requests that run at once; more wait.")] = 4,
    max_queue_size: Annotated[int, typer.Option(min=0, help="Requests that may wait; more are refused.")] = 256,
    request_timeout: Annotated[float, typer.Option(min=0.001, help="Seconds for a whole answer.")] = 600.0,
    instances: Annotated[int, typer.Option(min=1, help="Copies of the engine in memory, on each GPU.")] = 1,
    gpus: Annotated[
        str | None, typer.Option(metavar="IDS", help="GPUs, such as 0,1. (default: 0)", show_default=False)
    ] = None,
    threads: Threads = None,
    link: Annotated[
        bool, typer.Option("--link", help="Link to the engine, by a relative path, and do not copy it.")
    ] = False,
    engine_path: Annotated[
        str | None,
        typer.Option(
            metavar="PATH", help="Where the server finds the engine, which is not copied then.", show_default=False
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace folders of that name, whatever they hold.")] = False,
    as_json: Json = False,
) -> None:
    """Write a model repository of Triton Inference Server that serves an engine.

    The models run in Triton's Python backend, whose Python needs this package. The engine is copied into the
    repository, which then holds no path to anything outside.

    Example: peagle-compile triton demo-engine --repository models
    """
    from ..deploy.triton.options import RepositoryOptions, name_of
    from ..deploy.triton.repository import write_repository

    if link and engine_path is not None:
        raise UsageError("--link and --engine-path contradict each other", fix="give one")
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
    )
    with voice.work() as progress:
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
        ("written", ", ".join(written.changed) or "nothing: all was there"),
        ("next", f"tritonserver --model-repository {written.repository}"),
    ]
    print(columns(rows))


def _ids(text: str | None) -> tuple[int, ...]:
    if text is None:
        return ()
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) < 5 for part in parts) or len(set(parts)) < len(parts):
        raise UsageError(f"--gpus is {text!r}", why="it takes numbers, each once", fix="give some, such as 0,1")
    return tuple(map(int, parts))
