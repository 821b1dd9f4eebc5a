"""Load something from a folder that other commands may replace meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

from ...plugins.errors import EnvironmentProblem
from ..free_memory import return_freed_memory

_ATTEMPTS = 3


class _Closable(Protocol):
    def close(self) -> None: ...


Opened = TypeVar("Opened", bound=_Closable)


def from_one_folder(path: Path, open_once: Callable[[], Opened]) -> Opened:
    """Return what ``open_once`` opens, with all files from one folder.

    Each file is opened by its path, and a build may publish another folder there. ``open_once`` is then called again.
    Raises its errors, and ``EnvironmentProblem`` for a folder that was replaced during every attempt.
    """
    for _ in range(_ATTEMPTS):
        before = _identity(path)
        try:
            opened = open_once()
        except EnvironmentProblem:
            if _identity(path) == before:
                raise
            continue
        if _identity(path) == before:
            return opened
        opened.close()
        del opened
        return_freed_memory()
    raise EnvironmentProblem(
        f"{path} was replaced while it was loaded",
        why=f"in each of {_ATTEMPTS} attempts, a command published another engine in its place",
        fix="load the engine again when no command replaces it",
    )


def _identity(path: Path) -> tuple[int, int] | None:
    """Return what distinguishes a folder from another one at the same path; None if there is none."""
    try:
        found = path.stat()
    except (OSError, ValueError):
        return None
    return found.st_dev, found.st_ino
