"""The folder that a command writes: where ``--out`` leads, and whether what it made may be put there."""

from __future__ import annotations

import os
import unicodedata
from contextlib import suppress
from pathlib import Path

from ...engines.folder.manifest import FILE_NAME, is_engine
from ...plugins.errors import UsageError
from .atomic_files import writing
from .leftovers import made_aside

EXPORT = "export.json"
QUANTIZED = "quantize_report.json"


def require_publishable(out: Path) -> Path:
    """Return the folder that ``out`` stands for, links followed; asked before the work as well as after it.

    Raises ``UsageError`` for what cannot be replaced, and ``EnvironmentProblem`` where nothing can be written.
    """
    require_name(out)
    with writing(out.parent, 0):
        final = Path(os.path.realpath(out))
        if os.path.lexists(out) and not os.path.exists(out):
            raise UsageError(
                f"{out} is a link to {os.readlink(out)}, which is not there",
                fix="make that folder, or remove the link",
            )
        if final.exists():
            _require_replaceable(out, final)
        _require_writable(final)
    return final


def require_apart(out: Path, *read: str | Path | None) -> None:
    """Refuse to replace a folder that is read, or one around it."""
    final = Path(os.path.realpath(out))
    for source in read:
        if source is not None and os.path.isdir(source) and Path(os.path.realpath(source)).is_relative_to(final):
            raise UsageError(
                f"--out {out} is the folder that is read", why="it would be replaced", fix="choose another --out"
            )


def is_export(folder: Path) -> bool:
    """Whether the folder was written by ``peagle-compile export``."""
    return os.path.isfile(folder / EXPORT)


def is_quantized(folder: Path) -> bool:
    """Whether the folder was written by ``peagle-compile quantize``."""
    return os.path.isfile(folder / QUANTIZED)


def require_name(out: Path) -> None:
    """Refuse names that reports and terminals cannot show."""
    if any(unicodedata.category(each) in ("Cc", "Cs") for each in str(out)):
        raise UsageError(
            f"--out {str(out)!a} cannot be written in a report",
            why="the name has control characters, or bytes that are not UTF-8",
            fix="choose another --out",
        )


def _require_replaceable(out: Path, final: Path) -> None:
    """Refuse to replace anything that this program did not make, and folders whose place cannot be taken."""
    if not final.is_dir() or not (is_engine(final) or is_export(final) or is_quantized(final) or _is_empty(final)):
        raise UsageError(
            f"{out} exists and is not an engine folder",
            why=f"there is no {FILE_NAME}, {EXPORT} or {QUANTIZED} in it, so it will not be replaced",
            fix="choose another --out, or remove it yourself",
        )
    if Path.cwd().is_relative_to(final):
        raise UsageError(
            f"--out {out} is the folder that you are in",
            why="a finished folder takes its place, and your shell would stay in the one that is gone",
            fix="name a folder in it, or go up with `cd` and name this one",
        )
    if final.is_mount():
        raise UsageError(
            f"--out {out} is where a disk is mounted",
            why="a finished folder takes the place of an old one, and no other can be in this place",
            fix=f"name a folder in it, for example --out {out / 'engine'}",
        )


def _is_empty(folder: Path) -> bool:
    return not any(folder.iterdir())


def _require_writable(final: Path) -> None:
    """Make the folder in which ``final`` would be made, and remove it again. Raises ``OSError`` if that fails."""
    made: list[Path] = []
    try:
        for folder in (*reversed(final.parents), made_aside(final)):
            if not os.path.exists(folder):
                folder.mkdir(exist_ok=True)
                made.append(folder)
    finally:
        for folder in reversed(made):
            with suppress(OSError):  # another process has put something there
                folder.rmdir()
