"""Locks on files and folders, which the system lets go of when their process dies, however it dies."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of a file or folder, waiting for it. Raises ``FileNotFoundError`` for one that is gone by then."""
    while (descriptor := _open(path, fcntl.LOCK_EX)) is None:
        pass  # another has taken its name while we waited
    try:
        yield
    finally:
        os.close(descriptor)


@contextmanager
def locked_file(path: Path) -> Iterator[None]:
    """Hold the lock of a file that is there for nothing else; it is made, and made again when it was removed."""
    while True:
        path.touch()
        try:
            descriptor = _open(path, fcntl.LOCK_EX)
        except FileNotFoundError:
            continue
        if descriptor is not None:
            break
    try:
        yield
    finally:
        os.close(descriptor)


@contextmanager
def locked_if_free(path: Path) -> Iterator[bool]:
    """Whether the lock of a file or folder was to be had; then it is held. That of a link never is."""
    try:
        descriptor = _open(path, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        descriptor = None
    try:
        yield descriptor is not None
    finally:
        if descriptor is not None:
            os.close(descriptor)


class Hold:
    """A folder that is in use by as many as like for as long as they have a ``Hold`` of it; no lock is to be had."""

    def __init__(self, folder: Path) -> None:
        """Raises ``OSError`` where there is no such folder."""
        self._descriptor = os.open(folder, os.O_RDONLY)
        fcntl.flock(self._descriptor, fcntl.LOCK_SH)

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)


def _open(path: Path, how: int) -> int | None:
    """Open what has the name ``path`` and lock it; None if it has the name no more. Links are not followed."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)  # a pipe would wait for a writer
    try:
        fcntl.flock(descriptor, how)
        ours, named = os.fstat(descriptor), os.lstat(path)
        if (ours.st_dev, ours.st_ino) == (named.st_dev, named.st_ino):
            return descriptor
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None
