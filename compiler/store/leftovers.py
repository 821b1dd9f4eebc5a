"""What builds that were killed left beside their destination: it goes, or comes back where it was a finished engine."""

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
_MADE_ASIDE = re.compile(rf"\.(?P<name>.+)\.[0-9a-f]{{8}}{re.escape(_BUILDING)}", re.DOTALL)


def made_aside(final: Path) -> Path:
    """Return a new name, beside ``final``, for the folder in which it is made; its maker holds the folder's lock."""
    return final.with_name(f".{final.name}.{secrets.token_hex(4)}{_BUILDING}")


def moved_aside(ready: Path) -> Path:
    """Return the name that an older folder has while ``ready`` takes its place."""
    return ready.with_name(ready.name + _OLD)


def clear_leftovers(folder: Path) -> None:
    """Tidy up in ``folder`` after killed builds of any name: what was unfinished goes, what was moved aside comes back.

    What a living process is at is not touched.
    """
    names = os.listdir(folder)
    for path in (folder / name for name in names if _MADE_ASIDE.fullmatch(name)):
        with locked_if_free(path) as is_free:
            if is_free:
                shutil.rmtree(path, ignore_errors=True)  # a file of that name is none of ours
    for old in (folder / name for name in names if name.endswith(_OLD)):
        ready = old.name.removesuffix(_OLD)
        match = _MADE_ASIDE.fullmatch(ready)
        if match is None or os.path.lexists(folder / ready):
            continue  # not ours, or another build is just now swapping them
        with suppress(OSError):
            if os.path.lexists(folder / match["name"]):
                remove(old)
            else:
                old.rename(folder / match["name"])


def remove(path: Path) -> None:
    """Remove a folder with all that is in it; of a link to one, the link, and a file or pipe in its place."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
