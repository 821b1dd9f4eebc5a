"""An engine as SageMaker's ``model.tar.gz``, which it unpacks into ``/opt/ml/model``: byte for byte the same each time.

https://docs.aws.amazon.com/sagemaker/latest/dg/your-algorithms-inference-code.html, "How SageMaker AI Loads Your Model
Artifacts". The files of the engine lie at the top of the archive, so that ``/opt/ml/model`` is the engine's folder.
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
from ..store.destination import require_name
from ..store.leftovers import clear_leftovers
from ..store.publish import folder_beside

SUFFIX = ".tar.gz"


@dataclass(frozen=True)
class Archive:
    """A written archive: where, its size and hash, and the engine in it with the bytes of its files."""

    path: Path
    entry: FileEntry
    manifest: Manifest
    engine_bytes: int


def write_archive(engine: Path, out: Path, progress: Progress, *, level: int, force: bool) -> Archive:
    """Check an engine folder, and write it as ``out``, which is there whole or not at all.

    ``level`` is gzip's, 0 to 9. The same engine and level give the same bytes (of level 0 whatever the zlib). Files in
    the folder that are not the engine's are left out. Raises ``UsageError`` for an ``out`` that cannot be taken or,
    without ``force``, is there; ``EnvironmentProblem`` for a folder that is no engine or was changed.
    """
    require_free(out, force=force)
    manifest = Manifest.read(engine)
    size = sum(entry.size for entry in manifest.files.values())
    with progress.step("check the engine", size) as advance:
        check_files(manifest.files, engine, advance=advance)
    names = sorted({FILE_NAME, *manifest.files})
    with writing(out.parent, size):
        final = Path(os.path.realpath(out))
        final.parent.mkdir(parents=True, exist_ok=True)
        clear_leftovers(final.parent)
        require_space(final.parent, size)
        with folder_beside(final) as aside:
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
    """Raise ``UsageError`` for an ``out`` of another name than SageMaker takes, or that must not be replaced."""
    require_name(out)
    if not out.name.endswith(SUFFIX) or out.name == SUFFIX:
        raise UsageError(
            f"--out {out} is no name of an archive",
            why=f"SageMaker takes model data that ends in {SUFFIX}",
            fix=f"say --out model{SUFFIX}",
        )
    with writing(out.parent, 0):
        if out.exists() and not out.is_file():
            raise UsageError(f"--out {out} is there and is no file", fix="choose another --out")
        if os.path.lexists(out) and not out.exists():
            raise UsageError(f"--out {out} is a link to what is not there", fix="remove the link, or choose another")
        if out.exists() and not force:
            raise UsageError(f"--out {out} is there", fix="say --force to replace it, or choose another --out")


def _write(engine: Path, names: list[str], file: BinaryIO, level: int, advance: Advance) -> None:
    """Write the archive: names in order, and of each file nothing but its content, for anybody to read."""
    with (
        gzip.GzipFile(filename="", mode="wb", fileobj=file, compresslevel=level, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for name in names:
            path = engine / name
            with path.open("rb") as content:
                header = tarfile.TarInfo(name)
                header.size, header.mode = os.fstat(content.fileno()).st_size, 0o644
                tar.addfile(header, _ReadAloud(content, advance))


class _ReadAloud:
    """A file that tells how much of it was read."""

    def __init__(self, file: BinaryIO, advance: Advance) -> None:
        self._file, self._advance = file, advance

    def read(self, size: int = -1, /) -> bytes:
        """At most ``size`` bytes of it."""
        piece = self._file.read(size)
        self._advance(len(piece))
        return piece
