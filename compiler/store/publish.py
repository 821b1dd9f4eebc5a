"""Publish an engine folder: assembled beside its final name, complete before anyone can see it, swapped in whole."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from ...engines.folder.manifest import FILE_NAME, Manifest, is_engine
from ...engines.folder.records import FileEntry
from ...plugins.errors import UsageError
from ..console import interrupts
from ..console.half_made import half_made
from ..console.progress import Progress
from .atomic_files import BUILDING, clear_leftovers, flush_tree, locked, move_into_place, require_space, writing
from .copy_file import copy_file, shares_blocks
from .stages import Stage

EXPORT = "export.json"
QUANTIZED = "quantize_report.json"
TOKENIZER = "tokenizer.json"
_BESIDE_IT = ("tokenizer_config.json", "chat_template.jinja", "generation_config.json")


@dataclass
class Assembly:
    """An engine folder in the making; every file goes in through here, so that the manifest lists them all."""

    folder: Path
    files: dict[str, FileEntry] = field(default_factory=dict)

    def place_stage(self, stage: Stage, below: str, progress: Progress) -> None:
        """Copy a stage's files into a sub-folder; not a second name for each, with which ``onnx`` refuses weights."""
        size = sum(entry.size for entry in stage.files.values())
        if not shares_blocks(stage.path, self.folder):
            require_space(self.folder.parent, size)
        with progress.step(f"copy {below}", size) as advance:
            for name, entry in stage.files.items():
                copy_file(stage.path / name, self._place(below, name, entry), advance)

    def take_stage(self, stage: Stage, below: str, progress: Progress) -> None:
        """Move a stage's files into a sub-folder; the store has it no more."""
        with progress.step(f"move {below}", sum(entry.size for entry in stage.files.values())) as advance:
            for name, entry in stage.files.items():
                source, target = stage.path / name, self._place(below, name, entry)
                try:
                    source.rename(target)
                except OSError:  # another disk
                    require_space(self.folder.parent, entry.size)
                    copy_file(source, target, advance)
        shutil.rmtree(stage.path, ignore_errors=True)

    def _place(self, below: str, name: str, entry: FileEntry) -> Path:
        """Count a file in; returns where it goes."""
        self.files[f"{below}/{name}"] = entry
        target = self.folder / below / name
        target.parent.mkdir(parents=True, exist_ok=True)
        return target

    def place_copy(self, source: Path, name: str) -> None:
        """Copy one small file."""
        self.place_text(name, source.read_bytes())

    def place_text(self, name: str, content: str | bytes) -> None:
        """Write one small file."""
        path = self.folder / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        self.files[name] = FileEntry.of(path)

    def enter(self, below: str) -> None:
        """Count in what somebody else wrote into a sub-folder."""
        for path in sorted((self.folder / below).iterdir()):
            self.files[f"{below}/{path.name}"] = FileEntry.of(path)

    def place_tokenizer(self, checkpoint: Path) -> None:
        """Copy what turns text into ids and back."""
        for name in (TOKENIZER, *_BESIDE_IT):
            if (checkpoint / name).is_file():
                self.place_copy(checkpoint / name, name)

    def write_manifest(self, manifest: Manifest) -> Manifest:
        """Write the manifest with the files placed so far; from here on the folder is an engine."""
        manifest = replace(manifest, files=dict(sorted(self.files.items())))
        manifest.write(self.folder)
        return manifest


def require_publishable(out: Path) -> None:
    """Refuse to replace anything that this program did not make; asked before the work as well as after it."""
    ours = is_engine(out) or is_export(out) or (out / QUANTIZED).is_file()
    if out.is_dir() and (ours or not any(out.iterdir())):
        return
    if out.exists() or out.is_symlink():
        raise UsageError(
            f"{out} exists and is not an engine folder",
            why=f"there is no {FILE_NAME}, {EXPORT} or {QUANTIZED} in it, so it will not be replaced",
            fix="choose another --out, or remove it yourself",
        )


def require_apart(out: Path, *read: str | Path | None) -> None:
    """Refuse to replace a folder that is read."""
    for source in read:
        if source is not None and Path(source).is_dir() and Path(source).resolve() == out.resolve():
            raise UsageError(
                f"--out {out} is the folder that is read", why="it would be replaced", fix="choose another --out"
            )


def is_export(folder: Path) -> bool:
    """Whether the folder was written by ``peagle-compile export``."""
    return (folder / EXPORT).is_file()


@contextmanager
def assembling(out: Path, sizes: Mapping[str, int]) -> Iterator[Assembly]:
    """Lend a folder to fill, which is published as ``out`` when the block ends well, and gone when it does not."""
    out = Path(os.path.abspath(out))
    require_publishable(out)
    with writing(out.parent, sum(sizes.values())):
        out.parent.mkdir(parents=True, exist_ok=True)
        clear_leftovers(out)
        temporary = out.with_name(f".{out.name}.{secrets.token_hex(4)}{BUILDING}")
        with half_made(temporary):
            temporary.mkdir()
            with locked(temporary):
                yield Assembly(temporary)
                interrupts.check()
                flush_tree(temporary)
                require_publishable(out)
                move_into_place(temporary, out)
