"""Copy a file: instantly, sharing blocks, if the file system supports it, else piece by piece."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryFile

_CLONE = 0x40049409  # FICLONE of linux/fs.h
_PIECE = 64 << 20


def copy_file(source: Path, target: Path, advance: Callable[[int], None]) -> None:
    """Copy ``source`` to an independent file ``target``; ``advance`` is called with the bytes of each piece."""
    with source.open("rb") as reader, target.open("xb") as writer:
        if _clone(reader.fileno(), writer.fileno()):
            advance(source.stat().st_size)
            return
        for count in _pieces(reader.fileno(), writer.fileno()):
            os.fsync(writer.fileno())  # otherwise the wait for the disk comes at the end, without progress
            advance(count)


def shares_blocks(first: Path, second: Path) -> bool:
    """Return True if copies from ``first`` to ``second`` share blocks. Neither path has to exist."""
    try:
        with TemporaryFile(dir=nearest(first)) as source, TemporaryFile(dir=nearest(second)) as copy:
            source.write(bytes(4096))
            source.flush()
            return _clone(source.fileno(), copy.fileno())
    except OSError:
        return False


def nearest(path: Path) -> Path:
    """Return ``path``, or its nearest existing parent folder."""
    while not os.path.exists(path):
        path = path.parent
    return path


def _clone(source: int, target: int) -> bool:
    """Share the blocks of ``source`` with ``target``; False if the file system cannot."""
    try:
        fcntl.ioctl(target, _CLONE, source)
    except OSError:
        return False
    return True


def _pieces(source: int, target: int) -> Iterator[int]:
    """Copy between descriptors; yield the bytes of each piece."""
    while count := _in_the_kernel(source, target) or _copy_in_user_space(source, target):
        yield count


def _in_the_kernel(source: int, target: int) -> int:
    """Copy a piece inside the kernel (a server or a disk may share blocks); 0 at the end or if unsupported."""
    try:
        return os.copy_file_range(source, target, _PIECE)
    except (AttributeError, OSError):
        return 0


def _copy_in_user_space(source: int, target: int) -> int:
    """Copy a piece through user space; 0 at the end."""
    data = memoryview(os.read(source, _PIECE))
    written = 0
    while written < len(data):
        written += os.write(target, data[written:])
    return written
