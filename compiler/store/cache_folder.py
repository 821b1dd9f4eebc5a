"""The cache folder: its location, and protection against other users.

Builds load machine code and weights from the cache. Therefore the cache is not used if another user owns a folder in
it, or if other users can write to one.
"""

from __future__ import annotations

import grp
import os
import pwd
import shlex
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from ...plugins.errors import EnvironmentProblem
from ...plugins.switches import is_off
from .atomic_files import writing

VARIABLE = "PEAGLE_CACHE"
SWITCH = "PEAGLE_CACHE_CHECK"
_WHY = (
    "builds load machine code and weights from the cache, so anyone who can write to the cache controls what builds run"
)
_SWITCH_WHY = "the valid values are on and off; off trusts everybody who can write to the cache"
_ROOT = 0
_GROUP, _OTHERS = 0o070, 0o007
_WRITE, _SEARCH = 0o022, 0o011


class UntrustedCache(EnvironmentProblem):
    """Other users can write to the cache, so the command stops (exit code 3)."""


def cache_root() -> Path:
    """Return this user's cache folder: ``$PEAGLE_CACHE``, else ``~/.cache/peagle-compile``."""
    if folder := os.environ.get(VARIABLE):
        return Path(folder)
    try:
        return Path.home() / ".cache" / "peagle-compile"
    except RuntimeError as error:
        raise EnvironmentProblem(
            "no cache folder is available", why=str(error), fix=f"set {VARIABLE} to a folder"
        ) from error


def require_folder(root: Path) -> None:
    """Raise ``EnvironmentProblem`` if something else than a folder has the place of ``root`` or of a parent."""
    found = root
    while not os.path.lexists(found):
        found = found.parent
    if not os.path.isdir(found):
        kind = "a link to nothing" if found.is_symlink() and not found.exists() else "not a folder"
        raise EnvironmentProblem(
            f"the cache {root} cannot be used",
            why=f"{found} is {kind}",
            fix=f"set {VARIABLE} to a folder" + ("" if os.environ.get(VARIABLE) else f", or remove {found}"),
        )


def make_private(root: Path, *below: str) -> Path:
    """Create the folder ``root/below`` if missing; folders created here are accessible to this user only."""
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = root
    for name in below:
        folder /= name
        folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def require_trusted(root: Path, *below: str) -> None:
    """Raise ``UntrustedCache`` unless only this user and root can write to ``root/below``.

    Checks every folder from ``root`` on, and everything in the last one. Missing paths are trusted. Links above the
    last folder are followed; both the link and its target count. Folders above ``root`` are not checked: whoever
    replaces ``root`` there owns the replacement.
    """
    if not is_off(SWITCH, _SWITCH_WHY):
        with writing(root, 0):
            _check_path(root, below)


def _check_path(root: Path, below: Sequence[str]) -> None:
    path, is_closed = root, False
    for name in ("", *below):
        path = path / name
        if path.is_symlink():
            _require_owner(root, path, os.lstat(path))
            is_closed = False  # the link may lead out of a private folder
        try:
            found = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return
        is_closed = _require(root, path, found, is_closed=is_closed)
    if below and stat.S_ISDIR(found.st_mode):
        for entry, found, inner_is_closed in _entries(path, is_closed=is_closed):
            _require(root, entry, found, is_closed=inner_is_closed)


def _entries(folder: Path, *, is_closed: bool) -> Iterator[tuple[Path, os.stat_result, bool]]:
    """Yield everything below ``folder``, and whether its parent folder is private."""
    for name in sorted(os.listdir(folder)):
        path = folder / name
        with suppress(FileNotFoundError):  # removed meanwhile
            found = os.lstat(path)
            yield path, found, is_closed
            if stat.S_ISDIR(found.st_mode):
                yield from _entries(path, is_closed=is_closed or _is_closed_to_others(found))


def _require(root: Path, path: Path, found: os.stat_result, *, is_closed: bool) -> bool:
    """Check one entry; returns whether its content is private."""
    _require_owner(root, path, found)
    if is_closed or stat.S_ISLNK(found.st_mode):  # the mode of a link has no meaning
        return is_closed
    if _others(found) & _WRITE:
        raise UntrustedCache(
            f"other users can write to {path}, which is {_part(root, path)}",
            why=f"the path has mode {stat.S_IMODE(found.st_mode):04o} and owner {_name(found.st_uid)}; {_WHY}",
            fix=f"if nobody else has written to this path, run `chmod -R go-w {shlex.quote(str(path))}`; otherwise "
            f"remove the path (builds recreate its content); or {_elsewhere()}",
        )
    return _is_closed_to_others(found)


def _require_owner(root: Path, path: Path, found: os.stat_result) -> None:
    if found.st_uid in (os.geteuid(), _ROOT):
        return
    fix = "" if path == root else f"remove it with `rm -r {shlex.quote(str(path))}` (builds recreate its content); or "
    raise UntrustedCache(
        f"{path}, which is {_part(root, path)}, belongs to {_name(found.st_uid)}",
        why=f"this command runs as {_name(os.geteuid())}; {_WHY}",
        fix=f"{fix}{_elsewhere()}",
    )


def _others(found: os.stat_result) -> int:
    """Return the permission bits of everybody but the owner; a group with only the owner in it counts as the owner."""
    mode = stat.S_IMODE(found.st_mode)
    return mode & (_OTHERS if _is_private(found.st_gid) else _OTHERS | _GROUP)


def _is_closed_to_others(found: os.stat_result) -> bool:
    return stat.S_ISDIR(found.st_mode) and not _others(found) & _SEARCH


def _is_private(group: int) -> bool:
    """Return True for the private group of this user or of root: it has their name, and no other member."""
    for user in {os.geteuid(), _ROOT}:
        with suppress(KeyError):
            known, its = pwd.getpwuid(user), grp.getgrgid(group)
            if known.pw_gid == group and its.gr_name == known.pw_name and {*its.gr_mem} <= {known.pw_name}:
                return True
    return False


def _part(root: Path, path: Path) -> str:
    return "the cache folder" if path == root else f"in the cache {root}"


def _name(user: int) -> str:
    try:
        return f"{pwd.getpwuid(user).pw_name} (user {user})"
    except KeyError:
        return f"user {user}"


def _elsewhere() -> str:
    return f"set {VARIABLE} to a folder of your own; {SWITCH}=off trusts everybody who can write to the cache"
