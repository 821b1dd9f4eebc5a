"""The stage store: what a build step made, kept under the hash of everything that it depends on.

A stage appears in the store whole or not at all, so that an interrupted build resumes and a rerun skips what is done.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...engines.folder.records import FileEntry
from ...plugins.errors import EnvironmentProblem
from ..console import interrupts
from ..console.half_made import half_made
from ..console.progress import Progress, Quiet
from .atomic_files import flush_tree, move_into_place, writing
from .import_closure import code_digest
from .killed_stages import clear_killed, clear_killed_of, lock_of, step_aside
from .locks import Hold, locked_file
from .made_for import MadeFor

_RECORD = "stage.json"
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Stage:
    """A finished step: its folder, its files with their hashes, and whether an earlier build had made it.

    As long as somebody has it, it is not removed from the store.
    """

    path: Path
    files: Mapping[str, FileEntry]
    reused: bool
    hold: Hold = field(repr=False, compare=False)


@dataclass(frozen=True)
class StageStore:
    """Finished steps below ``root``. ``force`` makes every step anew; ``made_for`` is kept with what is made.

    ``progress`` shows what of that takes long.
    """

    root: Path
    force: bool = False
    made_for: MadeFor | None = None
    progress: Progress = field(default_factory=Quiet, compare=False)

    @classmethod
    def default(cls, *, force: bool = False) -> StageStore:
        """The store of this user: ``$PEAGLE_CACHE``, else ``~/.cache/peagle-compile``."""
        if named := os.environ.get("PEAGLE_CACHE"):
            return cls(Path(named), force)
        try:
            return cls(Path.home() / ".cache" / "peagle-compile", force)
        except RuntimeError as error:
            raise EnvironmentProblem(
                "there is no place for finished steps", why=str(error), fix="set PEAGLE_CACHE to a folder"
            ) from error

    def run(
        self, name: str, key_parts: Any, make: Callable[[Path], None], *, needed: int = 0, by_content: bool = False
    ) -> Stage:
        """Return the stage ``name`` for ``key_parts`` (any JSON value), made by ``make(folder)`` unless it is there.

        It is made anew when the code that ``make`` can reach has changed; not so with ``by_content``, where
        ``key_parts`` has the hash of what comes out. ``key_parts`` must name all that ``make`` is handed: values by
        themselves, files by their hash. ``needed`` is the size to name when the disk is full.
        """
        key = content_key(name, key_parts) if by_content else stage_key(name, make, key_parts)
        with writing(self.root, needed), self.place(name, key) as final:
            if not self.force and (stage := _finished(final, self.progress)):
                _log.info("%s: kept from before, as %s", name, final)
                with suppress(OSError):  # a store may be for reading only
                    os.utime(final)
                return stage
            clear_killed(self.root)
            stage = self._make(final, make)
            _log.info("%s: made, and kept as %s", name, final)
            return stage

    @contextmanager
    def place(self, name: str, key: str) -> Iterator[Path]:
        """Lend the place of what is kept as ``name`` for ``key``: another process that wants it waits."""
        final = self.root / name / key
        final.parent.mkdir(parents=True, exist_ok=True)
        with ExitStack() as until_the_end:
            with self.progress.step(f"wait for another process to make {name}"):
                until_the_end.enter_context(locked_file(lock_of(final)))
            yield final

    def note(self, folder: Path) -> None:
        """Write into the folder of a step what it is made for."""
        if self.made_for:
            self.made_for.write(folder)

    def _make(self, final: Path, make: Callable[[Path], None]) -> Stage:
        clear_killed_of(final)
        temporary = step_aside(final)
        with half_made(temporary):
            temporary.mkdir()
            make(temporary)
            interrupts.check()
            made = {path.relative_to(temporary).as_posix(): path for path in _files(temporary)}
            with self.progress.step(
                "hash what was made", sum(path.stat().st_size for path in made.values())
            ) as advance:
                files = {name: FileEntry.of(path, advance) for name, path in made.items()}
            record = {path: [entry.size, entry.sha256] for path, entry in files.items()}
            (temporary / _RECORD).write_text(json.dumps(record))
            self.note(temporary)
            with self.progress.step("wait for the disk"):
                flush_tree(temporary)
            move_into_place(temporary, final)
        return Stage(final, files, reused=False, hold=Hold(final))


def stage_key(name: str, make: Callable[..., object], key_parts: Any) -> str:
    """Return the content address of a stage: its inputs, and the code of ``make``, which turns them into it."""
    return content_key(name, [code_digest(make), key_parts])


def content_key(name: str, key_parts: Any) -> str:
    """Return the address of a stage that is the same whatever code makes it."""
    return hashlib.sha256(json.dumps([name, key_parts], sort_keys=True).encode()).hexdigest()[:32]


def _finished(final: Path, progress: Progress) -> Stage | None:
    """The stage if it is there and undamaged: what a disk or a hand did to it must not reach an engine."""
    try:
        record = json.loads((final / _RECORD).read_bytes())
        files = {name: FileEntry(size, sha256) for name, (size, sha256) in record.items()}
        with progress.step("check what is kept", sum(entry.size for entry in files.values())) as advance:
            if any(FileEntry.of(final / name, advance) != entry for name, entry in files.items()):
                return None
        return Stage(final, files, reused=True, hold=Hold(final))
    except (OSError, ValueError, TypeError, AttributeError):
        return None


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())
