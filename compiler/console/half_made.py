"""What must not outlive this process: folders and files that are half-made, and processes that make them."""

from __future__ import annotations

import atexit
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_PATIENCE = 30.0  # for what is held; a disk that does not answer for longer will not
_TRIES = 50

_lock = threading.RLock()
_holds = 0
_paths: list[Path] = []
_children: list[subprocess.Popen[str]] = []


@contextmanager
def held() -> Iterator[None]:
    """Let nothing come between: no stop is raised inside, and the process is not ended meanwhile."""
    global _holds
    _holds += 1
    try:
        with _lock:
            yield
    finally:
        _holds -= 1


def is_held() -> bool:
    """Whether a stop has to wait."""
    return _holds > 0


@contextmanager
def half_made(path: Path) -> Iterator[None]:
    """Have ``path`` removed when the block ends, or the process; one that is done was given another name by then."""
    _paths.append(path)
    try:
        yield
    finally:
        with held():
            _remove(path)
            _paths.remove(path)


@contextmanager
def ours(child: subprocess.Popen[str]) -> Iterator[None]:
    """Have a process killed with ours while the block lasts."""
    _children.append(child)
    try:
        yield
    finally:
        _children.remove(child)


def remove_all() -> None:
    """Kill and remove all there is, for who ends the process then: what is held afterwards waits for that."""
    _lock.acquire(timeout=_PATIENCE)
    for child in _children:
        child.kill()
    for child in _children:
        with suppress(subprocess.TimeoutExpired):
            child.wait(1)
    for path in _paths:
        _remove(path)


def _remove(path: Path) -> None:
    """Remove a file or a folder, also one that a thread still writes into."""
    for _ in range(_TRIES):
        with suppress(OSError):
            path.unlink() if path.is_symlink() or path.is_file() else shutil.rmtree(path)
        if not path.is_symlink() and not path.exists():
            return
        time.sleep(0.02)


@atexit.register
def _at_exit() -> None:
    for path in _paths:  # a stop came just before it would have been removed
        _remove(path)
