"""Cleanup at exit: temporary files and folders to remove, and child processes to kill."""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_PATIENCE = 30.0  # seconds to wait for ``defer_stops`` blocks; a disk that hangs for longer will not recover
_TRIES = 50

_lock = threading.RLock()
_holds = 0
_paths: list[Path] = []
_children: list[subprocess.Popen[str]] = []


@contextmanager
def defer_stops() -> Iterator[None]:
    """Defer stop signals and process exit until the block ends."""
    global _holds
    _holds += 1
    try:
        with _lock:
            yield
    finally:
        _holds -= 1


def stops_are_deferred() -> bool:
    """Return True while a stop has to wait."""
    return _holds > 0


@contextmanager
def remove_on_exit(path: Path) -> Iterator[None]:
    """Remove ``path`` when the block or the process ends; finished work has been renamed by then."""
    _paths.append(path)
    try:
        yield
    finally:
        with defer_stops():
            _remove(path)
            _paths.remove(path)


@contextmanager
def kill_on_exit(child: subprocess.Popen[str]) -> Iterator[None]:
    """Kill a child process if this one exits inside the block."""
    _children.append(child)
    try:
        yield
    finally:
        _children.remove(child)


@contextmanager
def remove_on_failure(*paths: Path) -> Iterator[Callable[[], None]]:
    """Remove ``paths`` if the block fails or the process ends; not after a call of the yielded function."""
    _paths.extend(paths)
    is_kept = False

    def keep() -> None:
        nonlocal is_kept
        is_kept = True
        for path in paths:
            _paths.remove(path)

    try:
        yield keep
    finally:
        if not is_kept:
            with defer_stops():
                for path in paths:
                    _remove(path)
                keep()


def remove_all() -> None:
    """Kill all children and remove all paths, just before the process ends; later ``defer_stops`` blocks wait."""
    _lock.acquire(timeout=_PATIENCE)
    for child in _children:
        child.kill()
    for child in _children:
        with suppress(subprocess.TimeoutExpired):
            child.wait(1)
    for path in _paths:
        _remove(path)


def _remove(path: Path) -> None:
    """Remove a file or a folder, even if a thread still writes into it."""
    for _ in range(_TRIES):
        with suppress(OSError):
            path.unlink() if path.is_symlink() or path.is_file() else shutil.rmtree(path)
        if not os.path.lexists(path):  # pathlib raises for a name that is too long
            return
        time.sleep(0.02)


@atexit.register
def _at_exit() -> None:
    for path in _paths:  # left if a stop came just before the removal
        _remove(path)
