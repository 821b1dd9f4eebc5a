"""Packing of an engine as SageMaker's ``model.tar.gz``, which is unpacked into ``/opt/ml/model``; reproducible.

https://docs.aws.amazon.com/sagemaker/latest/dg/your-algorithms-inference-code.html, "How SageMaker AI Loads Your Model
Artifacts". The engine's files are at the top level of the archive, so ``/opt/ml/model`` becomes the engine folder.
"""

from __future__ import annotations

import gzip
import os
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from ...engines.folder.checks import check_files
from ...engines.folder.manifest import FILE_NAME, Manifest
from ...engines.folder.records import FileEntry
from ...plugins.errors import UsageError
from ..console import interrupts
from ..console.progress import Advance, Progress
from ..store.atomic_files import flush_tree, require_space, writing
from ..store.destination import require_name, require_outside_engines
from ..store.leftovers import clear_leftovers
from ..store.publish import temporary_folder
from .reading_engine import reading

SUFFIX = ".tar.gz"


@dataclass(frozen=True)
class Archive:
    """A written archive: its path, size and hash, and the manifest and size of the engine in it."""

    path: Path
    entry: FileEntry
    manifest: Manifest
    engine_bytes: int


def write_archive(engine: Path, out: Path, progress: Progress, *, level: int, force: bool) -> Archive:
    """Check an engine folder and write it atomically as ``out``. Commands that change the engine wait until the end.

    ``level`` is gzip's, 0 to 9. With the same zlib version, the same engine and level give the same bytes (at level 0,
    with any version). Files that do not belong to the engine are omitted. Raises ``UsageError`` for an invalid ``out``
    or, without ``force``, an existing one; ``EnvironmentProblem`` for a folder that is not an engine or was changed.
    """
    require_free(out, force=force)
    with reading(engine, progress) as manifest:
        size = sum(entry.size for entry in manifest.files.values())
        with progress.step("check the engine", size) as advance:
            check_files(manifest.files, engine, advance=advance)
        names = sorted({FILE_NAME, *manifest.files})
        with writing(out.parent, size):
            final = Path(os.path.realpath(out))
            final.parent.mkdir(parents=True, exist_ok=True)
            clear_leftovers(final.parent)
            require_space(final.parent, size)
            with temporary_folder(final) as aside:
                ready = aside / final.name
                with progress.step("write the archive", size) as advance, ready.open("xb") as file:
                    _write(engine, names, file, level, advance)
                interrupts.check()
                flush_tree(aside)
                require_free(out, force=force)
                entry = FileEntry.of(ready)
                ready.replace(final)
    return Archive(out, entry, manifest, size)


def require_free(out: Path, *, force: bool) -> None:
    """Raise ``UsageError`` for an ``out`` whose name SageMaker does not accept, or that must not be replaced."""
    require_name(out)
    if not out.name.endswith(SUFFIX) or out.name == SUFFIX:
        raise UsageError(
            f"--out {out} is not an archive name",
            why=f"SageMaker accepts only model data that ends in {SUFFIX}",
            fix=f"use --out model{SUFFIX}",
        )
    with writing(out.parent, 0):
        require_outside_engines(out, f"--out {out}")
        if out.exists() and not out.is_file():
            raise UsageError(f"--out {out} exists and is not a file", fix="choose another file for --out")
        if os.path.lexists(out) and not out.exists():
            raise UsageError(f"--out {out} is a dangling link", fix="choose another file for --out, or remove the link")
        if out.exists() and not force:
            raise UsageError(
                f"--out {out} already exists", fix="add --force to replace it, or choose another file for --out"
            )


def _write(engine: Path, names: list[str], file: BinaryIO, level: int, advance: Advance) -> None:
    """Write the archive with sorted names and fixed metadata."""
    with (
        gzip.GzipFile(filename="", mode="wb", fileobj=file, compresslevel=level, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for name in names:
            path = engine / name
            with path.open("rb") as content:
                header = tarfile.TarInfo(name)
                header.size, header.mode = os.fstat(content.fileno()).st_size, 0o644
                tar.addfile(header, _ReportingReader(content, advance))


class _ReportingReader:
    """A file that reports how much of it was read."""

    def __init__(self, file: BinaryIO, advance: Advance) -> None:
        self._file, self._advance = file, advance

    def read(self, size: int = -1, /) -> bytes:
        """Read at most ``size`` bytes."""
        piece = self._file.read(size)
        self._advance(len(piece))
        return piece
