"""Read files from untrusted sources: reading always ends, and never exhausts memory."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path


def read_regular(path: Path, max_bytes: int) -> bytes:
    """Return the bytes of a regular file. Raises ``OSError`` for anything else, ``ValueError`` above ``max_bytes``."""
    with open(path, "rb", opener=_without_waiting) as file:
        require_regular(file.fileno())
        content = file.read(max_bytes + 1)  # do not rely on the size that the file reports
    if len(content) > max_bytes:
        raise ValueError(f"the file has more than {max_bytes:,} bytes")
    return content


def read_recorded(path: Path, size: int, sha256: str, max_bytes: int) -> bytes:
    """Return the bytes of a regular file. Raises ``ValueError`` for another size or hash, and like ``read_regular``."""
    content = read_regular(path, max_bytes)
    if len(content) != size:
        raise ValueError(f"the file has {len(content)} bytes instead of {size}")
    if hashlib.sha256(content).hexdigest() != sha256:
        raise ValueError("the content of the file does not match its hash")
    return content


def require_regular(file: int | Path) -> None:
    """Raise ``OSError`` unless it is a regular file: a pipe waits for a writer, and a device may never end."""
    if not stat.S_ISREG(os.stat(file).st_mode):
        raise OSError("the path is not a regular file")


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
