"""Atomic files and folders: created under another name, flushed to disk, then moved into place."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ...plugins.errors import BuildError, EnvironmentProblem, UsageError
from ..console.exit_cleanup import defer_stops, remove_on_exit
from .copy_file import nearest
from .leftovers import remove, retired_path

_FULL = (errno.ENOSPC, errno.EDQUOT)
_NAMES = (errno.ENAMETOOLONG, errno.EILSEQ)
_PERMISSIONS = (errno.EACCES, errno.EPERM, errno.EROFS)
_REFUSED = (  # refused by the system: disks, permissions, limits; none of them can be a bug in this package
    errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENOENT, errno.ELOOP,
    errno.EINVAL, errno.ENXIO, errno.ENODEV, errno.EBUSY, errno.EXDEV, errno.EFBIG, errno.EIO, errno.ESTALE,
    errno.EMFILE, errno.ENFILE, errno.ENOLCK, errno.EOPNOTSUPP,
)  # fmt: skip
_RESUME = "nothing was published; a build resumes from its finished steps"
_FREE = "free some space, or use another disk (for a build: --out and PEAGLE_CACHE), and run the same command again"


def flush_tree(folder: Path) -> None:
    """fsync every file and folder below, so that a rename never becomes durable before the content."""
    for parent, _, files in os.walk(folder):
        flush(*(Path(parent, name) for name in files), Path(parent))


def flush(*paths: Path) -> None:
    """fsync files, and folders for the names in them."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def move_into_place(ready: Path, final: Path) -> None:
    """Replace ``final`` with ``ready``. An older ``final`` stays intact until then."""
    old = retired_path(ready)
    with defer_stops():
        if final.exists():
            final.rename(old)
        try:
            ready.rename(final)
        except OSError:
            if old.exists():
                old.rename(final)
            raise
        flush(final.parent)
        remove(old)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write, which then replaces the file ``path``; an error leaves ``path`` as it was."""
    with writing(path.parent, 0):
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        with remove_on_exit(temporary):
            yield temporary
            flush(temporary)
            temporary.replace(path)


def require_writable(path: Path) -> None:
    """Raise before the work what ``replacing`` would raise after it: a missing folder, for example."""
    with writing(path.parent, 0):
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        with remove_on_exit(temporary):
            temporary.touch()


@contextmanager
def writing(path: Path, needed: int) -> Iterator[None]:
    """Convert I/O errors to errors with advice.

    ``path`` is the written path, or a parent; ``needed`` is the size in bytes to report when the disk is full.
    """
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            wanted = f"{_size(needed)} are needed, but only " if needed else "only "
            raise BuildError(
                f"the disk that contains {path} is full",
                why=f"{wanted}{_size(free_bytes(path))} are free; {_RESUME}",
                fix=_FREE,
            ) from error
        if error.errno in _NAMES:
            raise UsageError(
                f"{_named(error, path)} is not a valid file name on this file system",
                why=os.strerror(error.errno),
                fix="choose a shorter name, without special characters",
            ) from error
        if error.errno in _REFUSED:
            error_path = _named(error, path)
            fix = f"{'make it writable, or ' if error.errno in _PERMISSIONS else ''}choose another folder"
            is_inside = _is_around(error_path, path) or _is_around(path, error_path)
            raise EnvironmentProblem(
                f"cannot {'write to' if is_inside else 'read'} {error_path}",
                why=error.strerror or os.strerror(error.errno),
                fix=fix if is_inside else "check that the file exists and is readable",
            ) from error
        raise


def _named(error: OSError, path: Path) -> Path:
    """Return the path that an error refers to."""
    return Path(os.fsdecode(error.filename)) if isinstance(error.filename, str | bytes) else path


def _is_around(folder: Path, path: Path) -> bool:
    try:
        return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))
    except OSError:  # the current folder was removed
        return folder == path


def require_space(path: Path, needed: int) -> None:
    """Raise ``BuildError`` before hours of work unless ``needed`` bytes are free."""
    free = free_bytes(path)
    if free < needed:
        raise BuildError(
            f"not enough disk space for {path}",
            why=f"{_size(needed)} are needed, but only {_size(free)} are free; {_RESUME}",
            fix=_FREE,
        )


def free_bytes(path: Path) -> int:
    """Return the free bytes on the disk that contains ``path``, which need not exist."""
    return shutil.disk_usage(nearest(path)).free


def _size(count: int) -> str:
    for unit in ("bytes", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}"
        count /= 1000  # type: ignore[assignment]
    return f"{count:.1f} GB"
