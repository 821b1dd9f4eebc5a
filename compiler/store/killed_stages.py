"""Steps that were not finished because their process was killed: found by their names, in use if their lock is held.

A step KEY is made as .KEY.xxxxxxxx beside it, under the lock of KEY.lock.
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
_ASIDE = re.compile(r"\.(?P<key>[0-9a-f]{32})\..+")


def step_aside(final: Path) -> Path:
    """Return a new name beside the step ``final``, for one that is not finished or about to go."""
    return final.with_name(f".{final.name}.{secrets.token_hex(4)}")


def steps(root: Path) -> list[Path]:
    """Return the folders of all steps below ``root``, finished or not; of nothing else that lies there."""
    return [path for path in _folders(root) if _KEY.fullmatch(path.name) and lock_of(path).exists()]


def lock_of(step: Path) -> Path:
    """Return the file whose lock has who makes, takes or removes a step."""
    return step.with_suffix(LOCK)


def killed(root: Path) -> list[Path]:
    """Return what killed processes left below ``root``, of any step."""
    made = [(path, path.with_name(match["key"])) for path in _folders(root) if (match := _ASIDE.fullmatch(path.name))]
    locks = [(path, lock_of(step)) for path, step in made if lock_of(step).exists()]
    locks += [(path, root / SCRATCH_LOCK) for path in root.glob(f"{SCRATCH}*")]
    return [path for path, lock in locks if _is_free(lock)]


def clear_killed(root: Path) -> None:
    """Remove what killed processes left below ``root``, of any step."""
    for folder in killed(root):
        remove(folder)


def clear_killed_of(final: Path) -> None:
    """Remove what was left of one step, whose lock is ours."""
    for folder in final.parent.glob(f".{final.name}.*"):
        remove(folder)


def _folders(root: Path) -> Iterator[Path]:
    """Yield what lies where steps do: in a folder for each kind, and there may be stores in a store."""
    for pattern in ("*/*", "*/*/*"):
        yield from root.glob(pattern)


def _is_free(lock: Path) -> bool:
    with locked_if_free(lock) as is_free:
        return is_free
