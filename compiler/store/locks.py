"""File and folder locks that the system releases when their process ends, for whatever reason."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from ...plugins.errors import EnvironmentProblem
from ..console.progress import Progress, Quiet

_NOT_WRITABLE = (errno.EISDIR, errno.EACCES, errno.EPERM, errno.EROFS)  # but other file systems lock it
_WITHOUT_LOCKS = (errno.EBADF, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # of a file system


class _WithoutLocks(EnvironmentProblem):
    """A file system has no locks, so the command stops (exit code 3)."""


@contextmanager
def locked(path: Path, progress: Progress | None = None) -> Iterator[None]:
    """Lock a file or folder, waiting if necessary, which ``progress`` then shows as a step.

    Raises ``FileNotFoundError`` if it disappears in the meantime.
    """
    with _waiting(path, fcntl.LOCK_EX, progress):
        yield


@contextmanager
def locked_for_reading(path: Path, progress: Progress | None = None) -> Iterator[None]:
    """Lock a file or folder against changes, together with other readers. Waits and raises as ``locked`` does.

    Without locks in its file system, it stays unlocked: commands that change it refuse to work there.
    """
    with ExitStack() as until_the_end:
        with suppress(_WithoutLocks):
            until_the_end.enter_context(_waiting(path, fcntl.LOCK_SH, progress))
        yield


@contextmanager
def locked_file(path: Path) -> Iterator[None]:
    """Lock a dedicated lock file; it is created, also again if it was removed."""
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
    """Try to lock a file or folder, and yield whether that succeeded. Links are never locked.

    Raises ``EnvironmentProblem`` on a file system without locks, where nothing would ever be free.
    """
    try:
        descriptor = _open(path, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        descriptor = None
    try:
        yield descriptor is not None
    finally:
        if descriptor is not None:
            os.close(descriptor)


class SharedLock:
    """A shared lock on a folder, held as long as the object exists; it prevents exclusive locks."""

    def __init__(self, folder: Path) -> None:
        """Raises ``OSError`` if the folder does not exist."""
        self._folder = folder
        self._descriptor = os.open(folder, os.O_RDONLY)
        _lock(self._descriptor, folder, fcntl.LOCK_SH)

    def claim(self) -> bool:
        """Make the lock exclusive if no other object holds the folder, else keep it shared; return whether it is.

        A folder that was replaced under its path cannot be claimed: the lock is that of the old one.
        """
        try:
            _lock(self._descriptor, self._folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(self._descriptor, self._folder):
                return True
        except (BlockingIOError, FileNotFoundError):
            pass
        self.share()
        return False

    def share(self) -> None:
        """Make the lock shared again."""
        _lock(self._descriptor, self._folder, fcntl.LOCK_SH)

    def __del__(self) -> None:
        if hasattr(self, "_descriptor"):
            os.close(self._descriptor)


@contextmanager
def _waiting(path: Path, how: int, progress: Progress | None) -> Iterator[None]:
    try:
        descriptor = _open(path, how | fcntl.LOCK_NB)
    except BlockingIOError:
        with (progress or Quiet()).step(f"wait for another command that uses {path}"):
            descriptor = _open(path, how)
    while descriptor is None:  # another file took its name during the wait
        descriptor = _open(path, how)
    try:
        yield
    finally:
        os.close(descriptor)


def _open(path: Path, how: int) -> int | None:
    """Open and lock ``path``; None if the name refers to another file by then. Links are not followed."""
    flags = os.O_NOFOLLOW | os.O_NONBLOCK  # opening a pipe would block
    try:
        descriptor = os.open(path, os.O_RDWR | flags)  # NFS locks no file exclusively that is open for reading alone
    except OSError as error:
        if error.errno not in _NOT_WRITABLE:
            raise
        descriptor = os.open(path, os.O_RDONLY | flags)
    try:
        _lock(descriptor, path, how)
        if _is_at(descriptor, path):
            return descriptor
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def _lock(descriptor: int, path: Path, how: int) -> None:
    """Lock an opened file. Raises ``EnvironmentProblem`` if its file system has no locks."""
    try:
        fcntl.flock(descriptor, how)
    except OSError as error:
        if error.errno not in _WITHOUT_LOCKS:
            raise
        raise _WithoutLocks(
            f"cannot lock {path}",
            why=f"its file system has no locks: {error.strerror}",
            fix="use a folder on a local disk (for a build: --out, and PEAGLE_CACHE for the cache), "
            "or enable locks where the file system is mounted",
        ) from error


def _is_at(descriptor: int, path: Path) -> bool:
    """Return whether ``path`` still names the opened file. Raises ``FileNotFoundError`` if it names nothing."""
    opened, on_disk = os.fstat(descriptor), os.lstat(path)
    return (opened.st_dev, opened.st_ino) == (on_disk.st_dev, on_disk.st_ino)
