"""Writing of models into a repository: each folder atomically, and never over files written by others."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ....engines.folder.checks import check_files
from ....engines.folder.manifest import FILE_NAME, Manifest
from ....engines.folder.records import FileEntry
from ....plugins.errors import UsageError
from ....plugins.problems import listed
from ...console import interrupts
from ...console.progress import Progress
from ...store.atomic_files import flush_tree, move_into_place, require_space, writing
from ...store.copy_file import copy_file, shares_blocks
from ...store.destination import require_name, require_outside_engines
from ...store.leftovers import clear_leftovers
from ...store.locks import locked
from ...store.publish import temporary_folder
from ..reading_engine import reading
from .model_folders import ENGINE, model_folders
from .options import RepositoryOptions

INVENTORY = ".peagle-compile.json"  # in a model's folder: the list of files written there


@dataclass(frozen=True)
class WrittenModels:
    """The models of a repository, and those that had to be written."""

    repository: Path
    models: tuple[str, ...]
    changed: tuple[str, ...]
    engine: str  # path relative to the folder of the first model, or the given --engine-path


def write_repository(
    engine: Path, repository: Path, options: RepositoryOptions, progress: Progress, *, force: bool
) -> WrittenModels:
    """Check an engine folder and write the models that serve it into ``repository``, which may hold others.

    Models that are up to date are left unchanged, and the same engine and options give the same bytes. Raises
    ``UsageError`` for invalid options and, without ``force``, for model folders with other content;
    ``EnvironmentProblem`` for a folder that is not an engine or was changed.
    """
    with reading(engine, progress) as manifest:
        options.require_possible(manifest)
        require_name(repository)
        size = sum(entry.size for entry in manifest.files.values())
        with progress.step("check the engine", size) as advance:
            check_files(manifest.files, engine, advance=advance)
        source = _Engine(engine, manifest)
        with writing(repository, size):
            final = Path(os.path.realpath(repository))
            require_outside_engines(final / options.name, f"--repository {repository}")
            plans = []
            for name, texts in model_folders(options, manifest).items():
                holds_engine = name == options.name
                plans.append(_plan(final / name, texts, source if holds_engine else None, options))
            final.mkdir(parents=True, exist_ok=True)
            with locked(final):  # another run may be writing the same models
                for plan in plans:
                    plan.require_free(engine, force=force)
                changed = [plan for plan in plans if not plan.exists()]
                if changed:
                    clear_leftovers(final)
                for plan in changed:
                    plan.publish(progress)
    engine_path = options.path if options.placing == "path" else f"1/{ENGINE}"
    return WrittenModels(
        repository, tuple(p.folder.name for p in plans), tuple(p.folder.name for p in changed), engine_path
    )


class _Engine:
    """An engine folder to copy, with all its files including the manifest."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder = folder
        self.files = {**manifest.files, FILE_NAME: FileEntry.of(folder / FILE_NAME)}

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(entry.size for entry in self.files.values())


@dataclass(frozen=True)
class _Plan:
    """The planned content of a model folder: ``texts`` by path, and the ``copied`` engine or a ``link`` to it."""

    folder: Path
    texts: Mapping[str, str]
    copied: _Engine | None
    link: str | None

    def inventory(self) -> dict[str, Any]:
        """Return the inventory: the hash of each file, and the link."""
        hashes = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in self.texts.items()}
        if self.copied is not None:
            hashes |= {f"1/{ENGINE}/{name}": entry.sha256 for name, entry in self.copied.files.items()}
        return {"files": dict(sorted(hashes.items())), "link": self.link}

    def exists(self) -> bool:
        """Return True if the folder holds exactly this content."""
        return _stored(self.folder) == self.inventory() and not _foreign_paths(self.folder)

    def require_free(self, engine: Path, *, force: bool) -> None:
        """Raise ``UsageError`` for a folder that cannot be replaced or, without ``force``, should not be."""
        if engine.resolve().is_relative_to(self.folder):
            raise UsageError(
                f"the engine {engine} is inside {self.folder}, which would be replaced",
                why="replacing the folder would delete the engine",
                fix="use the original engine folder, or another --name",
            )
        foreign = _foreign_paths(self.folder)
        if foreign and not force:
            raise UsageError(
                f"{self.folder} contains files that this command did not write: {listed(foreign, 5)}",
                why="the folder was modified, or was not created by this command",
                fix="use another --name or --repository, or replace the folder with --force",
            )

    def publish(self, progress: Progress) -> None:
        """Write a temporary folder and move it into place."""
        with temporary_folder(self.folder) as aside:
            for name, text in self.texts.items():
                path = aside / name
                path.parent.mkdir(exist_ok=True)
                path.write_text(text, encoding="utf-8")
            if self.copied is not None:
                self._copy(self.copied, aside / "1" / ENGINE, progress)
            if self.link is not None:
                (aside / "1" / ENGINE).symlink_to(self.link)
            (aside / INVENTORY).write_text(json.dumps(self.inventory(), indent=1) + "\n", encoding="utf-8")
            interrupts.check()
            flush_tree(aside)
            move_into_place(aside, self.folder)

    def _copy(self, engine: _Engine, target: Path, progress: Progress) -> None:
        if not shares_blocks(engine.folder, target.parent):
            require_space(target.parent, engine.size)
        with progress.step(f"copy {engine.folder.name}", engine.size) as advance:
            for name in sorted(engine.files):
                (target / name).parent.mkdir(parents=True, exist_ok=True)
                copy_file(engine.folder / name, target / name, advance)


def _plan(folder: Path, texts: Mapping[str, str], engine: _Engine | None, options: RepositoryOptions) -> _Plan:
    copied = engine if options.placing == "copy" else None
    link = None
    if engine is not None and options.placing == "link":
        link = os.path.relpath(os.path.realpath(engine.folder), folder / "1")
    return _Plan(folder, texts, copied, link)


def _stored(folder: Path) -> Any:
    """Read the inventory of a folder; None if there is no valid one."""
    try:
        stored = json.loads((folder / INVENTORY).read_bytes())
        return stored if isinstance(stored.get("files"), dict) else None
    except (OSError, ValueError, AttributeError):
        return None


def _foreign_paths(folder: Path) -> list[str]:
    """Return the paths in a folder that this command did not write, or that were changed since."""
    if not os.path.lexists(folder):
        return []
    if not folder.is_dir():
        return [folder.name]
    stored = _stored(folder) or {"files": {}, "link": None}
    hashes, link = stored["files"], f"1/{ENGINE}"
    foreign = []
    for parent, folders, names in os.walk(folder):
        for name in [*names, *(each for each in folders if os.path.islink(os.path.join(parent, each)))]:
            path = Path(parent, name)
            inside = path.relative_to(folder).as_posix()
            if (inside == INVENTORY and hashes) or "__pycache__" in path.parts:
                continue
            if path.is_symlink():
                is_known = inside == link and os.readlink(path) == stored.get("link")
            else:
                is_known = inside in hashes and FileEntry.of(path).sha256 == hashes[inside]
            if not is_known:
                foreign.append(inside)
    missing = [name for name in hashes if not (folder / name).is_file()]
    return sorted(foreign) + [f"{name} (missing)" for name in sorted(missing)]
