"""Unfinished stages of killed processes: found by their names, in use if their lock is held.

A stage KEY is created as .KEY.xxxxxxxx beside its final path, under the lock of KEY.lock.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from pathlib import Path

from .leftovers import remove
from .locks import locked_if_free

LOCK = ".lock"
SCRATCH, SCRATCH_LOCK = ".bisect.", "bisect.lock"
_KEY = re.compile("[0-9a-f]{32}")
_UNFINISHED = re.compile(r"\.(?P<key>[0-9a-f]{32})\..+")


def unfinished_path(final: Path) -> Path:
    """Return a new name beside ``final`` for a stage that is unfinished or being removed."""
    return final.with_name(f".{final.name}.{secrets.token_hex(4)}")


def steps(root: Path) -> list[Path]:
    """Return the folders of all stages below ``root``, finished or not, and nothing else."""
    return [path for path in _folders(root) if _KEY.fullmatch(path.name) and lock_of(path).exists()]


def lock_of(step: Path) -> Path:
    """Return the lock file for creating, using or removing a stage."""
    return step.with_suffix(LOCK)


def killed(root: Path) -> list[Path]:
    """Return all unfinished stages of killed processes below ``root``."""
    unfinished = [
        (path, path.with_name(match["key"])) for path in _folders(root) if (match := _UNFINISHED.fullmatch(path.name))
    ]
    locks = [(path, lock_of(step)) for path, step in unfinished if lock_of(step).exists()]
    locks += [(path, root / SCRATCH_LOCK) for path in root.glob(f"{SCRATCH}*")]
    return [path for path, lock in locks if _is_free(lock)]


def clear_killed(root: Path) -> None:
    """Remove all unfinished stages of killed processes below ``root``."""
    for folder in killed(root):
        remove(folder)


def clear_killed_of(final: Path) -> None:
    """Remove unfinished versions of one stage, whose lock the caller holds."""
    for folder in final.parent.glob(f".{final.name}.*"):
        remove(folder)


def _folders(root: Path) -> Iterator[Path]:
    """Yield what may be a stage: the content of each kind's folder, and of each kind's in nested stores."""
    for kind in _content(root):
        for path in _content(kind):
            yield path
            yield from _content(path)


def _content(folder: Path) -> list[Path]:
    """Return the paths in a folder; none if it is a file, or if another process has just moved or removed it."""
    try:
        return [*folder.iterdir()]
    except OSError:
        return []


def _is_free(lock: Path) -> bool:
    with locked_if_free(lock) as is_free:
        return is_free
