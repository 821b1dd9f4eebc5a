"""Leftovers of killed builds beside their destination: remove them, or restore a finished engine that was moved."""

from __future__ import annotations

import os
import re
import secrets
import shutil
from contextlib import suppress
from pathlib import Path

from .locks import locked_if_free

_BUILDING = ".building"
_OLD = ".old"
_TEMPORARY_NAME = re.compile(rf"\.(?P<name>.+)\.[0-9a-f]{{8}}{re.escape(_BUILDING)}", re.DOTALL)


def temporary_path(final: Path) -> Path:
    """Return a new name, beside ``final``, for a folder under construction, which its builder keeps locked."""
    return final.with_name(f".{final.name}.{secrets.token_hex(4)}{_BUILDING}")


def retired_path(ready: Path) -> Path:
    """Return the temporary name of an older folder while ``ready`` replaces it."""
    return ready.with_name(ready.name + _OLD)


def clear_leftovers(folder: Path) -> None:
    """Clean up ``folder`` after killed builds: unfinished folders are removed, moved ones restored.

    Folders in use by a running process are not touched.
    """
    names = os.listdir(folder)
    for path in (folder / name for name in names if _TEMPORARY_NAME.fullmatch(name)):
        with locked_if_free(path) as is_free:
            if is_free:
                shutil.rmtree(path, ignore_errors=True)  # a plain file of that name is not ours
    for old in (folder / name for name in names if name.endswith(_OLD)):
        ready = old.name.removesuffix(_OLD)
        match = _TEMPORARY_NAME.fullmatch(ready)
        if match is None or os.path.lexists(folder / ready):
            continue  # not ours, or another build is swapping them right now
        with suppress(OSError):
            if os.path.lexists(folder / match["name"]):
                remove(old)
            else:
                old.rename(folder / match["name"])


def remove(path: Path) -> None:
    """Remove a folder with its content, a link to one (only the link), or a file or pipe."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
