"""Files that are wholly there or not there: folders made aside, flushed to disk, and moved into place."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from glob import escape
from pathlib import Path

from ...plugins.errors import BuildError, EnvironmentProblem
from ..console.half_made import held
from .copy_file import nearest

BUILDING = ".building"
_OLD = ".old"
_FULL = (errno.ENOSPC, errno.EDQUOT)
_REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST)
_RESUME = "nothing was published, finished steps are kept, and the same command goes on from there"


def flush_tree(folder: Path) -> None:
    """fsync every file and folder below, so that a rename never outlives its content."""
    for parent, _, files in os.walk(folder):
        for name in files:
            _fsync(Path(parent, name))
        _fsync(Path(parent))


def move_into_place(ready: Path, final: Path) -> None:
    """Make ``final`` be ``ready``. An older ``final`` stays whole until the new one can take its name."""
    old = ready.with_name(ready.name + _OLD)
    with held():
        if final.exists():
            final.rename(old)
        try:
            ready.rename(final)
        except OSError:
            if old.exists():
                old.rename(final)
            raise
        _fsync(final.parent)
        shutil.rmtree(old, ignore_errors=True)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of a file or folder; the system lets go of it when the process dies, however it dies."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def clear_leftovers(final: Path) -> None:
    """Tidy up after a build of ``final`` that was killed: its folder goes, an engine it had moved aside comes back."""
    for unfinished in final.parent.glob(f".{escape(final.name)}.*{BUILDING}"):
        if not _is_locked(unfinished):
            shutil.rmtree(unfinished, ignore_errors=True)
    for old in final.parent.glob(f".{escape(final.name)}.*{BUILDING}{_OLD}"):
        if old.with_name(old.name.removesuffix(_OLD)).exists():
            continue  # another build is just now swapping them
        if final.exists():
            shutil.rmtree(old, ignore_errors=True)
        else:
            old.rename(final)


def _is_locked(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:  # just now published by its owner
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


@contextmanager
def writing(where: Path, needed: int) -> Iterator[None]:
    """Turn a full or read-only disk into an error that says what was needed; ``needed`` is in bytes."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise BuildError(
                f"the disk of {where} is full",
                why=f"{_size(needed)} were needed there, {_size(free_bytes(where))} are free; {_RESUME}",
                fix="free some space, or point --out and PEAGLE_CACHE to another disk, and run the same command again",
            ) from error
        if error.errno in _REFUSED:
            raise EnvironmentProblem(
                f"cannot write to {error.filename or where}", why=os.strerror(error.errno), fix="choose another folder"
            ) from error
        raise


def require_space(where: Path, needed: int) -> None:
    """Fail before hours of work rather than after: ``BuildError`` unless ``needed`` bytes are free."""
    free = free_bytes(where)
    if free < needed:
        raise BuildError(
            f"not enough disk space for {where}",
            why=f"{_size(needed)} are needed there, {_size(free)} are free; {_RESUME}",
            fix="free some space, or point --out and PEAGLE_CACHE to another disk, and run the same command again",
        )


def free_bytes(where: Path) -> int:
    """Return the free bytes of the disk that ``where`` is or will be on."""
    return shutil.disk_usage(nearest(where)).free


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _size(count: int) -> str:
    for unit in ("bytes", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}"
        count /= 1000  # type: ignore[assignment]
    return f"{count:.1f} GB"
