"""Cached hashes of large files that others own, so that each is read only once per machine.

A file counts as unchanged while its inode, its size and its times are the same. Only the system sets the change time
(ctime), so a file that was modified and given its old modification time is read again. In the Hub's cache, the name of
a weight file is its hash.
"""

from __future__ import annotations

import json
import os
import platform
import re
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ...engines.folder.records import FileEntry
from .cache_folder import make_private, require_trusted

LARGE = 16 << 20  # bytes; smaller files are read each time
FOLDER = "hashes"
_SETTLED_NS = 2_000_000_000  # a file that just changed may change again within one tick of the clock
FileState = tuple[int, int, int] | None
_SHA256 = re.compile(r"[0-9a-f]{64}")


def entry_of(path: Path, root: Path | None, advance: Callable[[int], object] = lambda _: None) -> FileEntry:
    """Return size and hash of a file: computed, cached below ``root``, or taken from its name in the Hub's cache.

    ``advance`` receives its bytes, read or not. Without a writable ``root``, nothing is cached. Raises
    ``EnvironmentProblem`` for cached hashes that others can write.
    """
    before, now = path.stat(), time.time_ns()
    if before.st_size < LARGE:
        return FileEntry.of(path, advance)
    record_path = _place(root, before) if root else None
    if known := _name_at_hub(path) or _known(record_path, before):
        advance(before.st_size)
        return FileEntry(before.st_size, known)
    entry = FileEntry.of(path, advance)
    is_settled = now - max(before.st_mtime_ns, before.st_ctime_ns) > _SETTLED_NS
    if record_path and is_settled and _times(path.stat()) == _times(before):
        with suppress(OSError):
            make_private(record_path.parent.parent, FOLDER)
            _save_record(record_path, before, entry.sha256)
    return entry


def state_of(path: Path) -> FileState:
    """Return what changes if a file is written again: its inode, size and modification time; None if it is missing."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def _place(root: Path, found: os.stat_result) -> Path:
    """Return the cache file for another file's hash."""
    name = f"{platform.node()}-{found.st_dev:x}-{found.st_ino:x}.json"
    require_trusted(root, FOLDER, name)
    return root / FOLDER / name


def _times(found: os.stat_result) -> list[int]:
    return [found.st_size, found.st_mtime_ns, found.st_ctime_ns]


def _known(record_path: Path | None, found: os.stat_result) -> str:
    """Return the cached hash of a file that is unchanged, or ''."""
    if record_path is None or not record_path.is_file():
        return ""
    with suppress(OSError, ValueError, TypeError, RecursionError):
        *times, sha256 = json.loads(record_path.read_bytes())
        if times == _times(found) and _SHA256.fullmatch(sha256):
            return str(sha256)
    return ""


def _save_record(record_path: Path, found: os.stat_result, sha256: str) -> None:
    aside = record_path.with_name(f"{record_path.name}.{os.getpid()}")
    aside.write_text(json.dumps([*_times(found), sha256]))
    aside.replace(record_path)


def _name_at_hub(path: Path) -> str:
    """Return the hash in the name of a file in the Hub's cache, or ''."""
    real = Path(os.path.realpath(path))
    if real.parent.name != "blobs" or not _SHA256.fullmatch(real.name):
        return ""
    try:
        from huggingface_hub.constants import HF_HUB_CACHE
    except ImportError:
        return ""
    return real.name if real.parent.parent.parent == Path(os.path.realpath(HF_HUB_CACHE)) else ""
