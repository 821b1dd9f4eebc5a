"""Publish an engine folder: assemble it beside its final path, complete it, then swap it in atomically."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from ...engines.folder.checks import check_files
from ...engines.folder.manifest import Manifest, in_oldest_format
from ...engines.folder.records import FileEntry
from ...engines.text import template_files
from ...engines.text.template_files import read_templates
from ...plugins.errors import BuildError, EnvironmentProblem
from ..console import interrupts
from ..console.exit_cleanup import defer_stops, remove_on_exit
from ..console.progress import Progress
from ..console.progress_lines import Bytes
from .atomic_files import flush, flush_tree, move_into_place, require_space, writing
from .copy_file import copy_file, nearest, shares_blocks
from .destination import require_publishable
from .leftovers import clear_leftovers, temporary_path
from .locks import locked
from .stages import Stage, exclusively, leaving_store

ADOPTED_FROM = 10**9  # bytes of an engine's weights from which they are not kept in the store as well
TOKENIZER = "tokenizer.json"
_TOKENIZER_COMPANIONS = ("special_tokens_map.json", "generation_config.json")


@dataclass(frozen=True)
class _Adoption:
    """A stage that leaves the store when the folder is published; ``links`` are second names of its files."""

    stage: Stage
    links: Sequence[Path]
    progress: Progress

    def copy_links(self) -> None:
        """Make the files independent of a stage that stays in the store."""
        shared = [path for path in self.links if path.stat().st_nlink > 1]
        if not shared:
            return
        size = sum(path.stat().st_size for path in shared)
        require_space(self.stage.path.parent, size)
        with self.progress.step("copy the weights, which another build uses", Bytes(size)) as advance:
            for path in shared:
                copy = path.with_name(f".{path.name}.copy")
                copy_file(path, copy, advance)
                copy.replace(path)
                flush(path, path.parent)


@dataclass
class Assembly:
    """An engine folder under construction; all files are added through it, so that the manifest lists them all."""

    folder: Path
    files: dict[str, FileEntry] = field(default_factory=dict)
    _moved: set[str] = field(default_factory=set)
    _adopted: dict[str, _Adoption] = field(default_factory=dict)

    def place_stage(self, stage: Stage, below: str, progress: Progress) -> None:
        """Copy a stage's files into a sub-folder; not as hard links, because ``onnx`` refuses linked weights."""
        size = sum(entry.size for entry in stage.files.values())
        if not shares_blocks(stage.path, self.folder):
            require_space(self.folder.parent, size)
        with progress.step(f"copy {below}", Bytes(size)) as advance:
            for name, entry in stage.files.items():
                copy_file(stage.path / name, self._place(below, name, entry), advance)

    def adopt_stage(self, stage: Stage, below: str, progress: Progress) -> None:
        """Place a stage's files so that they leave the store when the folder is published.

        Until then they have two names, so that an interrupted build loses nothing. On another file system they are
        copied. If copies share blocks with the stage, it stays.
        """
        if shares_blocks(stage.path, self.folder):
            self.place_stage(stage, below, progress)
            return
        linked = []
        try:
            for name, entry in stage.files.items():
                target = self._place(below, name, entry)
                os.link(stage.path / name, target)
                linked.append(target)
                self._moved.add(f"{below}/{name}")
        except OSError:  # another file system, or one without links
            for target in linked:
                target.unlink()
            linked.clear()
            self._moved -= {f"{below}/{name}" for name in stage.files}
            self.place_stage(stage, below, progress)
        self._adopted[stage.path.name] = _Adoption(stage, linked, progress)

    def publish(self, final: Path) -> None:
        """Move the folder to ``final``; adopted stages leave the store with it, or stay if that fails.

        Files of a stage in use elsewhere are copied, before stops are deferred, because that may take long.
        """
        with ExitStack() as stack:
            owned = []
            for adoption in self._adopted.values():
                if stack.enter_context(exclusively(adoption.stage)):
                    owned.append(adoption.stage)
                else:
                    adoption.copy_links()
            with defer_stops(), ExitStack() as leaving:
                for stage in owned:
                    leaving.enter_context(leaving_store(stage))
                move_into_place(self.folder, final)

    def drop_stage(self, stage: Stage, below: str) -> None:
        """Remove the files placed from a stage, which stays in the store."""
        self._adopted.pop(stage.path.name, None)
        for name in stage.files:
            del self.files[f"{below}/{name}"]
            (self.folder / below / name).unlink()

    def _place(self, below: str, name: str, entry: FileEntry) -> Path:
        """Register a file; returns its destination."""
        self.files[f"{below}/{name}"] = entry
        target = self.folder / below / name
        target.parent.mkdir(parents=True, exist_ok=True)
        return target

    def place_copy(self, source: Path, name: str) -> None:
        """Copy one small file."""
        self.place_text(name, source.read_bytes())

    def place_text(self, name: str, content: str | bytes) -> None:
        """Write one small file; bytes of a path that are not text in this locale are escaped."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode(errors="backslashreplace") if isinstance(content, str) else content)
        self.files[name] = FileEntry.of(path)

    def enter(self, below: str) -> None:
        """Register files that other code wrote into a sub-folder."""
        for path in sorted((self.folder / below).iterdir()):
            self.files[f"{below}/{path.name}"] = FileEntry.of(path)

    def place_tokenizer(self, checkpoint: Path) -> None:
        """Copy the tokenizer and the chat templates.

        Chat templates become separate files, as ``transformers`` saves them, however the checkpoint stores them.
        """
        for name in (TOKENIZER, *_TOKENIZER_COMPANIONS):
            if (checkpoint / name).is_file():
                self.place_copy(checkpoint / name, name)
        for name, text in read_templates(checkpoint).items():
            is_default = name == template_files.DEFAULT
            self.place_text(template_files.TEMPLATE if is_default else f"{template_files.NAMED}/{name}.jinja", text)
        self._place_config(checkpoint / template_files.CONFIG)

    def _place_config(self, path: Path) -> None:
        """Copy the tokenizer's configuration without its template, which could differ from the file."""
        if not path.is_file():
            return
        content = json.loads(path.read_bytes())
        if content.pop("chat_template", None) is None:
            self.place_copy(path, path.name)
        else:
            self.place_text(path.name, json.dumps(content, indent=2, ensure_ascii=False) + "\n")

    def check(self, progress: Progress) -> None:
        """Compare every file with its source before publishing, to detect failed copies.

        Adopted files keep the hash they were created with. Raises ``BuildError``.
        """
        copied = {name: entry for name, entry in self.files.items() if name not in self._moved}
        size = sum(entry.size for entry in copied.values())
        with progress.step("check the copied files", Bytes(size)) as advance, self._reporting_damage():
            check_files(self.files, self.folder, hashes=False)
            check_files(copied, self.folder, advance=advance)

    def check_engine(self, manifest: Manifest, progress: Progress) -> None:
        """Do the same for an engine, and check that its manifest reads back equal. Raises ``BuildError``."""
        self.check(progress)
        with self._reporting_damage():
            read = Manifest.read(self.folder)
        if read.files != self.files or read != manifest:
            raise _damaged("the manifest that was read back differs")

    @contextmanager
    def _reporting_damage(self) -> Iterator[None]:
        try:
            yield
        except EnvironmentProblem as error:
            raise _damaged(error.one_line) from error

    def write_manifest(self, manifest: Manifest) -> Manifest:
        """Write the manifest with all files added so far; this makes the folder an engine."""
        manifest = in_oldest_format(replace(manifest, files=dict(sorted(self.files.items()))))
        manifest.write(self.folder)
        return manifest


def _damaged(why: str) -> BuildError:
    return BuildError(
        "the assembled folder is damaged and was not published",
        why=why,
        fix="check the disk, and run the same command again; if the error persists, add --force",
    )


@contextmanager
def assembling(out: Path, sizes: Mapping[str, int], progress: Progress | None = None) -> Iterator[Assembly]:
    """Yield a folder that is published as ``out`` on success, and removed on failure."""
    with writing(out.parent, sum(sizes.values())):
        clear_leftovers(nearest(Path(os.path.abspath(out)).parent))  # before checking what exists
        final = require_publishable(out)
        final.parent.mkdir(parents=True, exist_ok=True)
        clear_leftovers(final.parent)
        with temporary_folder(final) as temporary:
            assembly = Assembly(temporary)
            yield assembly
            interrupts.check()
            flush_tree(temporary)
            with ExitStack() as stack:
                with suppress(FileNotFoundError):  # nothing is replaced
                    stack.enter_context(locked(final, progress))  # another command may use the engine that is replaced
                require_publishable(out)
                assembly.publish(final)


@contextmanager
def temporary_folder(final: Path) -> Iterator[Path]:
    """Create a locked folder; it is removed on exit unless it was moved."""
    while True:
        folder = temporary_path(final)
        with remove_on_exit(folder), ExitStack() as stack:
            folder.mkdir()
            try:
                stack.enter_context(locked(folder))
            except FileNotFoundError:  # another build removed it as a leftover before it was locked
                continue
            yield folder
            return
