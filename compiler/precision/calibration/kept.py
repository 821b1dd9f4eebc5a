"""What an unfinished calibration keeps, step by step, so that the same command goes on where it was interrupted.

Each finished step leaves its ranges (small) and the streams that leave it (large). The streams of a step are removed
once those of the next are safely there.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ....engines.folder.records import FileEntry
from ...store.durable import flush_tree, locked, writing
from ...store.stages import StageStore, stage_key

Array = np.ndarray[Any, Any]

_NAME = "calibrate"


@dataclass(frozen=True)
class Kept:
    """The folder of one calibration: its steps are numbered from 0."""

    folder: Path

    @classmethod
    @contextmanager
    def open(cls, store: StageStore, key_parts: Any, needed: int) -> Iterator[Kept]:
        """The folder for ``key_parts``, locked; ``needed`` is the size to name when the disk is full."""
        folder = store.root / _NAME / stage_key(_NAME, [_own_code(), key_parts])
        with writing(store.root, needed):
            folder.mkdir(parents=True, exist_ok=True)
            with locked(folder):
                if store.force:
                    _empty(folder)
                yield cls(folder)

    def finished(self) -> int:
        """How many steps are done and undamaged; what cannot be gone on from is removed."""
        count = 0
        while self._ranges_whole(count):
            count += 1
        if count and not self._whole(count - 1, self.streams(count - 1)):
            count = 0
        if not count:
            _empty(self.folder)
        return count

    def streams(self, step: int) -> Path:
        """The file of the streams that leave ``step``."""
        return self.folder / f"streams-{step:04}.bin"

    @property
    def scratch(self) -> Path:
        """Where the streams of a step are written before it is finished."""
        return self.folder / "streams.partial"

    def ranges(self, step: int) -> dict[str, Array]:
        """What ``finish`` was given."""
        from safetensors.numpy import load_file

        return dict(load_file(self._ranges(step)))

    def finish(self, step: int, ranges: Mapping[str, Array]) -> None:
        """Keep a step: its ranges, and its streams from ``scratch``. It counts once its record is there."""
        from safetensors.numpy import save_file

        save_file({name: np.asarray(value, order="C") for name, value in ranges.items()}, self._ranges(step))
        self.scratch.rename(self.streams(step))
        files = {path.name: FileEntry.of(path) for path in (self._ranges(step), self.streams(step))}
        partial = self._record(step).with_suffix(".partial")
        partial.write_text(json.dumps({name: [entry.size, entry.sha256] for name, entry in files.items()}))
        flush_tree(self.folder)
        partial.rename(self._record(step))
        flush_tree(self.folder)
        for older in self.folder.glob("streams-*.bin"):
            if older != self.streams(step):
                older.unlink()

    def _ranges_whole(self, step: int) -> bool:
        return self._whole(step, self._ranges(step))

    def _whole(self, step: int, path: Path) -> bool:
        try:
            size, sha256 = json.loads(self._record(step).read_bytes())[path.name]
            return FileEntry.of(path) == FileEntry(size, sha256)
        except (OSError, ValueError, TypeError, KeyError):
            return False

    def _ranges(self, step: int) -> Path:
        return self.folder / f"ranges-{step:04}.safetensors"

    def _record(self, step: int) -> Path:
        return self.folder / f"step-{step:04}.json"


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            os.unlink(path)


def _own_code() -> str:
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(f"{path.name}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()
