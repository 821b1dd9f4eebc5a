"""Check the destination folder of a command: ``--out`` must be writable and may be replaced."""

from __future__ import annotations

import json
import os
import unicodedata
from contextlib import suppress
from pathlib import Path

from ...engines.folder.manifest import FILE_NAME, is_engine
from ...plugins.errors import UsageError
from ...plugins.problems import lack_of
from ...plugins.regular_files import read_regular
from .atomic_files import writing
from .leftovers import temporary_path

EXPORT = "export.json"
QUANTIZED = "quantize_report.json"
MAX_RECORD_BYTES = 2**28  # of a report in JSON or HTML
_OUTPUTS = frozenset({FILE_NAME, EXPORT, QUANTIZED})


def require_publishable(out: Path) -> Path:
    """Return the folder of ``out`` with links resolved; called both before and after the work.

    Raises ``UsageError`` if it must not be replaced, and ``EnvironmentProblem`` if it cannot be written.
    """
    require_name(out)
    with writing(out.parent, 0):
        final = Path(os.path.realpath(out))
        if os.path.lexists(out) and not os.path.exists(out):
            raise UsageError(
                f"{out} is a link to {os.readlink(out)}, which does not exist",
                fix="create that folder, or remove the link",
            )
        if final.exists():
            _require_replaceable(out, final)
        else:
            require_outside_engines(final, f"--out {out}")
        _require_writable(final)
    return final


def require_disjoint(out: Path, *read: str | Path | None) -> None:
    """Refuse to replace an input file or folder, or a parent of one."""
    final = Path(os.path.realpath(out))
    for source in read:
        if source is not None and os.path.exists(source) and Path(os.path.realpath(source)).is_relative_to(final):
            is_folder = os.path.isdir(source)
            raise UsageError(
                f"--out {out} is an input folder" if is_folder else f"--out {out} contains the input file {source}",
                why="the output would replace this folder",
                fix="choose another folder for --out" + ("" if is_folder else ", or move the file"),
            )


def require_outside_engines(path: Path, named: str) -> None:
    """Raise ``UsageError`` for a path inside an engine; ``named`` is the flag with the path that the user typed."""
    final = Path(os.path.realpath(path))
    engine = next((folder for folder in final.parents if os.path.isfile(folder / FILE_NAME)), None)
    if engine is not None:
        raise UsageError(
            f"{named} is inside the engine {engine}",
            why="an engine holds only its own files, and a build that replaces it removes everything else",
            fix="choose a path outside of the engine",
        )


def is_export(folder: Path) -> bool:
    """Return True if the folder was written by ``peagle-compile export``."""
    return os.path.isfile(folder / EXPORT)


def is_quantized(folder: Path) -> bool:
    """Return True if the folder was written by ``peagle-compile quantize``."""
    return os.path.isfile(folder / QUANTIZED)


def is_record(path: Path, key: str) -> bool:
    """Return True if ``path`` is a JSON file that holds an object with ``key``, as the reports of this program do."""
    try:
        content = json.loads(read_regular(path, MAX_RECORD_BYTES))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(content, dict) and key in content


def require_name(path: Path | str, option: str = "--out") -> None:
    """Reject names that reports and terminals cannot display; ``option`` is what the user named by them."""
    name = str(path)
    if any(unicodedata.category(each) in ("Cc", "Cs") for each in name):
        is_locale = not any(unicodedata.category(each) == "Cc" for each in name) and _is_utf8(name)
        raise UsageError(
            f"{option} {name!a} cannot be displayed",
            why="the encoding of the locale is not UTF-8"
            if is_locale
            else "the name has control characters, or bytes that are not UTF-8",
            fix=f"{'set PYTHONUTF8=1, or ' if is_locale else ''}choose another name for {option}",
        )


def _is_utf8(path: str) -> bool:
    """Return True if the bytes of a path are UTF-8, although the locale may decode them otherwise."""
    try:
        os.fsencode(path).decode()
    except UnicodeError:
        return False
    return True


def _require_replaceable(out: Path, final: Path) -> None:
    """Refuse to replace anything that this program did not create, and folders that cannot be replaced."""
    if not final.is_dir() or not (is_engine(final) or is_export(final) or is_quantized(final) or _is_empty(final)):
        raise UsageError(
            f"{out} exists and was not created by peagle-compile",
            why=f"{lack_of(final, FILE_NAME, EXPORT, QUANTIZED)}, so it was not replaced",
            fix=f"choose another folder for --out, or remove the {'folder' if final.is_dir() else 'file'} yourself",
        )
    if Path.cwd().is_relative_to(final):
        raise UsageError(
            f"--out {out} is the current folder",
            why="the finished folder would replace the current folder, and your shell would stay in the removed one",
            fix="use a subfolder, or run `cd ..` and pass this folder's name",
        )
    if final.is_mount():
        raise UsageError(
            f"--out {out} is a mount point",
            why="the finished folder replaces the old one, and a mount point cannot be replaced",
            fix=f"use a subfolder, for example --out {out / 'engine'}",
        )
    for folder, _, files in os.walk(final):
        if not os.access(folder, os.W_OK):
            raise UsageError(
                f"--out {out} is write-protected",
                why=f"the finished folder replaces the old one, whose files in {folder} cannot be removed",
                fix="choose another folder for --out, or make the folder writable with `chmod -R u+w`",
            )
        if Path(folder) != final and not _OUTPUTS.isdisjoint(files):
            raise UsageError(
                f"--out {out} contains another engine or checkpoint: {folder}",
                why="the finished folder replaces the old one with everything in it",
                fix="choose another folder for --out, or move the inner folder",
            )


def _is_empty(folder: Path) -> bool:
    return not any(folder.iterdir())


def _require_writable(final: Path) -> None:
    """Create the parent folder of ``final``, and remove it again. Raises ``OSError`` if that fails."""
    created: list[Path] = []
    try:
        for folder in (*reversed(final.parents), temporary_path(final)):
            if not os.path.exists(folder):
                folder.mkdir(exist_ok=True)
                created.append(folder)
    finally:
        for folder in reversed(created):
            with suppress(OSError):  # another process has created something there
                folder.rmdir()
