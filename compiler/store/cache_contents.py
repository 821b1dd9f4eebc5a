"""Contents of the stage cache, and removal of the least recently used."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from .atomic_files import writing
from .killed_stages import killed, lock_of, steps, unfinished_path
from .leftovers import remove
from .locks import locked_if_free
from .stage_origin import StageOrigin


@dataclass(frozen=True)
class CacheEntry:
    """A stage, or the leftover of a killed process: its kind, its size, and the time of its last use.

    ``bytes`` is what its removal frees: files with further hard links, as engines of earlier versions may have, do not
    count. ``used`` is in seconds since 1970.
    """

    path: Path
    kind: str
    bytes: int
    used: float
    stage_origin: StageOrigin | None
    is_leftover: bool = False

    @classmethod
    def of(cls, root: Path, path: Path, *, is_leftover: bool = False) -> CacheEntry:
        """Inspect the folder of a stage."""
        kind = path.parent.relative_to(root).as_posix()
        return cls(path, kind, _bytes(path), path.stat().st_mtime, StageOrigin.read(path), is_leftover)


@dataclass(frozen=True)
class Pruned:
    """Result of a pruning: entries removed, or to be removed; entries in use; and the remaining bytes."""

    removed: tuple[CacheEntry, ...]
    in_use: tuple[CacheEntry, ...]
    remaining_bytes: int

    @property
    def freed_bytes(self) -> int:
        """The freed bytes."""
        return sum(entry.bytes for entry in self.removed)


def entries(root: Path) -> list[CacheEntry]:
    """Return the entries below ``root``: leftovers first, then the least recently used."""
    with writing(root, 0):
        found = [_entry(root, path, is_leftover=True) for path in killed(root)]
        found += [_entry(root, path, is_leftover=False) for path in steps(root)]
    there = [entry for entry in found if entry]
    return sorted(there, key=lambda entry: (not entry.is_leftover, entry.used, entry.path))


def prune(
    root: Path, *, older_than: float | None = None, max_bytes: int | None = None, dry_run: bool = False
) -> Pruned:
    """Remove leftovers, stages unused for ``older_than`` seconds, and the oldest beyond ``max_bytes``.

    The least recently used go first. Stages of running commands stay. Raises ``EnvironmentProblem`` if the cache is
    not writable.
    """
    found, now = entries(root), time.time()
    remaining = sum(entry.bytes for entry in found)
    removed, in_use = [], []
    with writing(root, 0):
        for entry in found:
            is_old = older_than is not None and now - entry.used > older_than
            if not (entry.is_leftover or is_old or (max_bytes is not None and remaining > max_bytes)):
                continue
            if _remove_entry(entry, dry_run):
                removed.append(entry)
                remaining -= entry.bytes
            else:
                in_use.append(entry)
    return Pruned(tuple(removed), tuple(in_use), remaining)


def _entry(root: Path, path: Path, *, is_leftover: bool) -> CacheEntry | None:
    try:
        return CacheEntry.of(root, path, is_leftover=is_leftover)
    except FileNotFoundError:  # another process has just removed it
        return None


def _remove_entry(entry: CacheEntry, dry_run: bool) -> bool:
    """Remove an entry, or with ``dry_run`` only check; False if it is in use."""
    if entry.is_leftover:
        if not dry_run:
            remove(entry.path)
        return True
    lock = lock_of(entry.path)
    with ExitStack() as stack:
        if not all(stack.enter_context(locked_if_free(path)) for path in (lock, entry.path)):
            return False
        if not dry_run:
            aside = unfinished_path(entry.path)
            entry.path.rename(aside)  # so a half-removed stage is never used
            remove(aside)
            lock.unlink()
    return True


def _bytes(folder: Path) -> int:
    found = (Path(parent, name).lstat() for parent, _, names in os.walk(folder) for name in names)
    return sum(each.st_size for each in found if each.st_nlink == 1)
