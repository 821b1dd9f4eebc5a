"""Stage store: results of build steps, content-addressed by the hash of all their inputs.

A stage appears in the store atomically, so an interrupted build resumes, and a rerun skips finished steps.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...engines.folder.records import FileEntry
from ..console import interrupts
from ..console.exit_cleanup import remove_on_exit
from ..console.progress import Progress, Quiet
from ..console.progress_lines import Bytes
from .atomic_files import flush_tree, move_into_place, writing
from .cache_folder import cache_root, make_private, require_folder, require_trusted
from .import_closure import code_digest
from .killed_stages import clear_killed, clear_killed_of, lock_of, unfinished_path
from .leftovers import remove
from .locks import SharedLock, locked_file, locked_if_free
from .stage_origin import FILE_NAME as ORIGIN_FILE
from .stage_origin import StageOrigin

Make = Callable[[Path], object]  # may return hashes that it knows, by file: a mapping to `FileEntry`
_RECORD, _SEAL = "stage.json", "stage.sha256"  # the list of files, and its hash
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Stage:
    """A finished step: its folder, its files with their hashes, and whether it was reused from an earlier build.

    It is not removed from the store while this object exists.
    """

    path: Path
    files: Mapping[str, FileEntry]
    reused: bool
    hold: SharedLock = field(repr=False, compare=False)


@dataclass(frozen=True)
class StageStore:
    """Finished steps below ``root``. ``force`` repeats every step; ``stage_origin`` is recorded in new stages.

    ``progress`` shows long operations.
    """

    root: Path
    force: bool = False
    stage_origin: StageOrigin | None = None
    progress: Progress = field(default_factory=Quiet, compare=False)

    @classmethod
    def default(cls, *, force: bool = False) -> StageStore:
        """Return this user's store.

        Raises ``EnvironmentProblem`` if it is not a folder, or if other users can write to it.
        """
        root = cache_root()
        require_folder(root)
        require_trusted(root)
        return cls(root, force)

    def run(self, name: str, key_parts: Any, make: Make, *, needed: int = 0, by_content: bool = False) -> Stage:
        """Return the stage ``name`` for ``key_parts`` (any JSON value), created with ``make(folder)`` if it is missing.

        It is recreated when the code reachable from ``make`` changes, except with ``by_content``, where ``key_parts``
        contains the hash of the result. ``key_parts`` must cover all inputs of ``make``: values directly, files by
        their hash. ``make`` may return the entries of files that it has hashed itself. ``needed`` is the size to report
        when the disk is full.
        """
        key = content_key(name, key_parts) if by_content else stage_key(name, make, key_parts)
        with writing(self.root, needed), self.place(name, key) as final:
            if not self.force and (stage := _finished(final, self.progress)):
                _log.info("%s: reused from %s", name, final)
                with suppress(OSError):  # the store may be read-only
                    os.utime(final)
                return stage
            clear_killed(self.root)
            stage = self._make(final, make)
            _log.info("%s: created in %s", name, final)
            return stage

    @contextmanager
    def place(self, name: str, key: str) -> Iterator[Path]:
        """Lock the path of the stage ``name`` with ``key``; other processes that need it wait.

        Raises ``EnvironmentProblem`` if others can write there.
        """
        require_trusted(self.root)
        final = make_private(self.root, name) / key
        require_trusted(self.root, name, lock_of(final).name)
        with ExitStack() as until_the_end:
            with self.progress.step(f"wait for another process that makes {name}"):
                until_the_end.enter_context(locked_file(lock_of(final)))
            require_trusted(self.root, name, key)
            yield final

    def note(self, folder: Path) -> None:
        """Write the stage's purpose into its folder."""
        if self.stage_origin:
            self.stage_origin.write(folder)

    def _make(self, final: Path, make: Make) -> Stage:
        clear_killed_of(final)
        temporary = unfinished_path(final)
        with remove_on_exit(temporary):
            temporary.mkdir(mode=0o700)
            known = make(temporary)
            interrupts.check()
            written = _files(temporary)
            files = {name: known[name] for name in written if isinstance(known, Mapping) and name in known}
            rest = {name: path for name, path in written.items() if name not in files}
            with self.progress.step("hash the new files", Bytes(_total(rest.values()))) as advance:
                files = {name: files.get(name) or FileEntry.of(path, advance) for name, path in written.items()}
            _write_record(temporary, files)
            self.note(temporary)
            with self.progress.step("wait for the disk"):
                flush_tree(temporary)
            move_into_place(temporary, final)
        return Stage(final, files, reused=False, hold=SharedLock(final))


@contextmanager
def exclusively(stage: Stage) -> Iterator[bool]:
    """Yield whether a stage can leave the store: no other process uses it, and none can until the block ends."""
    with locked_if_free(lock_of(stage.path)) as is_free:
        is_owner = is_free and os.access(stage.path.parent, os.W_OK) and stage.hold.claim()
        try:
            yield is_owner
        finally:
            if is_owner:
                stage.hold.share()


@contextmanager
def leaving_store(stage: Stage) -> Iterator[None]:
    """Remove a stage, which is held exclusively, from the store; a block that fails leaves it there.

    It leaves the store in one step: what a killed process leaves behind never counts as a stage.
    """
    aside = unfinished_path(stage.path)
    stage.path.rename(aside)
    try:
        yield
    except BaseException:
        aside.rename(stage.path)
        raise
    remove(aside)
    lock_of(stage.path).unlink(missing_ok=True)


def stage_key(name: str, make: Callable[..., object], key_parts: Any) -> str:
    """Return the content address of a stage: its inputs, and the code of ``make``."""
    return content_key(name, [code_digest(make), key_parts])


def content_key(name: str, key_parts: Any) -> str:
    """Return the address of a stage that is independent of code."""
    return hashlib.sha256(json.dumps([name, key_parts], sort_keys=True).encode()).hexdigest()[:32]


def _finished(final: Path, progress: Progress) -> Stage | None:
    """Return the stage if it exists intact: damage by the disk or by hand must not reach an engine."""
    try:
        found = {} if final.is_symlink() else _files(final)  # before opening any: reading a pipe never ends
        files = _read_record(final)
        if not found or found.keys() != files.keys():
            return None
        with progress.step("check the cached files", Bytes(sum(entry.size for entry in files.values()))) as advance:
            if any(FileEntry.of(final / name, advance) != entry for name, entry in files.items()):
                return None
        return Stage(final, files, reused=True, hold=SharedLock(final))
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return None


def _total(paths: Iterable[Path]) -> int:
    return sum(path.stat().st_size for path in paths)


def _write_record(folder: Path, files: Mapping[str, FileEntry]) -> None:
    """Write the list of a stage's files, and its hash: an incomplete record is invalid."""
    record = json.dumps({name: [entry.size, entry.sha256] for name, entry in files.items()})
    (folder / _RECORD).write_text(record)
    (folder / _SEAL).write_text(hashlib.sha256(record.encode()).hexdigest())


def _read_record(folder: Path) -> dict[str, FileEntry]:
    """Return the files in a stage's record. Raises one of many exceptions for an invalid record."""
    record = (folder / _RECORD).read_bytes()
    if hashlib.sha256(record).hexdigest() != (folder / _SEAL).read_text():
        raise ValueError("the record was changed")
    return {name: FileEntry(size, sha256) for name, (size, sha256) in json.loads(record).items()}


def _files(folder: Path) -> dict[str, Path]:
    """Return the files of a stage by their path in the folder.

    Raises ``ValueError`` for links and special files, which no step creates.
    """
    found = {}
    for parent, folders, names in os.walk(folder):
        for path in (Path(parent, name) for name in (*folders, *names)):
            mode = path.lstat().st_mode
            if stat.S_ISREG(mode):
                found[path.relative_to(folder).as_posix()] = path
            elif not stat.S_ISDIR(mode):
                raise ValueError(f"{path} is neither a file nor a folder")
    return {name: found[name] for name in sorted(found) if name not in (_RECORD, _SEAL, ORIGIN_FILE)}
