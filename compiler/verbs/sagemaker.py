"""``peagle-compile sagemaker``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..console.printing import columns, emit, interruptible, size
from .flags.help_text import RUN
from .flags.shared_flags import EngineFolder, Json
from .flags.verbosity import Verbosity, with_verbosity

if TYPE_CHECKING:
    from ..deploy.sagemaker_archive import Archive


@interruptible("no archive was written")
@with_verbosity
def sagemaker(
    engine: EngineFolder,
    verbosity: Verbosity,
    out: Annotated[Path, typer.Option(metavar="FILE", help="Archive to write; its name ends in .tar.gz.")] = Path(
        "model.tar.gz"
    ),
    level: Annotated[
        int, typer.Option("--compression-level", min=0, max=9, help="gzip level; 0 stores without compression.")
    ] = 1,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing archive.", rich_help_panel=RUN)] = False,
    as_json: Json = False,
) -> None:
    """Pack an engine as a model.tar.gz for an Amazon SageMaker endpoint.

    The engine is checked first. With the same zlib version, the same engine and --compression-level produce the same
    bytes (at level 0, with any version). A container whose entry point is `peagle-compile serve` loads the archive
    automatically; see docs/sagemaker.md.

    Example: peagle-compile sagemaker demo-engine --out model.tar.gz
    """
    from ..deploy.sagemaker_archive import write_archive

    with verbosity.work() as progress:
        archive = write_archive(engine, out, progress, level=level, force=force)
    content = _content(archive)
    if as_json:
        emit(content)
    else:
        print(_summary(archive, content))


def _content(archive: Archive) -> dict[str, Any]:
    manifest = archive.manifest
    return {
        "archive": str(archive.path),
        "bytes": archive.entry.size,
        "sha256": archive.entry.sha256,
        "engine_bytes": archive.engine_bytes,
        "model": manifest.target.origin.id,
        "drafter": manifest.drafter.origin.id if manifest.drafter else None,
        "num_speculative_tokens": manifest.speculation.num_speculative_tokens,
        "backend": manifest.backend.name,
        "versions": dict(manifest.backend.versions),
        "gpus": list(manifest.backend.gpus),
    }


def _summary(archive: Archive, content: dict[str, Any]) -> str:
    backend = f"{content['backend']} {content['versions'].get(content['backend'], '')}".strip()
    gpu_hint = f", on {' or '.join(content['gpus'])}" if content["gpus"] else ""
    return columns(
        [
            ("archive", f"{archive.path}, {size(archive.entry.size)} (of {size(archive.engine_bytes)})"),
            ("sha256", archive.entry.sha256),
            ("model", content["model"]),
            ("drafter", content["drafter"] or "none"),
            ("needs", f"a container with peagle-compile[serve] and {backend}{gpu_hint}"),
        ]
    )
