"""Files of an unfinished calibration, step by step, so that the same command resumes it.

Each finished step leaves its ranges (small) and its output streams (large). The streams of a step are removed once
those of the next are safely stored.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ....engines.folder.records import FileEntry
from ....plugins.errors import EnvironmentProblem
from ...store.atomic_files import flush, writing
from ...store.leftovers import remove
from ...store.stage_origin import FILE_NAME as ORIGIN_FILE
from ...store.stages import StageStore, stage_key

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Array = np.ndarray[Any, Any]

_NAME = "calibrate"


@dataclass(frozen=True)
class CalibrationFolder:
    """The folder of one calibration; steps are numbered from 0."""

    folder: Path

    @classmethod
    @contextmanager
    def open(
        cls, store: StageStore, make: Callable[..., object], key_parts: Any, needed: int
    ) -> Iterator[CalibrationFolder]:
        """Lock and yield the folder for ``key_parts`` and the code of ``make``.

        ``needed`` is the size to report when the disk is full.
        """
        with writing(store.root, needed), store.place(_NAME, stage_key(_NAME, make, key_parts)) as folder:
            folder.mkdir(mode=0o700, exist_ok=True)
            if store.force:
                _empty(folder)
            store.note(folder)
            os.utime(folder)  # a reuse changes no file, but counts as a use for `cache prune`
            yield cls(folder)

    def finished(self) -> int:
        """Return the number of intact finished steps, and remove everything else."""
        count = 0
        while self._ranges_whole(count):
            count += 1
        if count and not self._is_complete(count - 1, self.streams(count - 1)):
            count = 0
        files = [path for step in range(count) for path in (self._record(step), self._ranges(step))]
        _empty(self.folder, {path.name for path in (*files, *([self.streams(count - 1)] if count else []))})
        return count

    def streams(self, step: int) -> Path:
        """The file with the output streams of ``step``."""
        return self.folder / f"streams-{step:04}.bin"

    @property
    def scratch(self) -> Path:
        """The file for the streams of an unfinished step."""
        return self.folder / "streams.partial"

    def ranges(self, step: int) -> dict[str, Array]:
        """Return the ranges passed to ``finish``."""
        from safetensors.numpy import load_file

        return dict(load_file(self._ranges(step)))

    def finish(self, step: int, ranges: Mapping[str, Array]) -> None:
        """Keep a step: its ranges, and its streams from ``scratch``. Its record, written last, makes it valid."""
        from safetensors.numpy import save_file

        save_file({name: np.asarray(value, order="C") for name, value in ranges.items()}, self._ranges(step))
        self.scratch.rename(self.streams(step))
        files = {path.name: FileEntry.of(path) for path in (self._ranges(step), self.streams(step))}
        partial = self._record(step).with_suffix(".partial")
        partial.write_text(json.dumps({name: [entry.size, entry.sha256] for name, entry in files.items()}))
        flush(self._ranges(step), self.streams(step), partial, self.folder)  # the files of earlier steps were flushed
        partial.rename(self._record(step))
        flush(self.folder)
        for older in self.folder.glob("streams-*.bin"):
            if older != self.streams(step):
                older.unlink()

    def _ranges_whole(self, step: int) -> bool:
        return self._is_complete(step, self._ranges(step))

    def _is_complete(self, step: int, path: Path) -> bool:
        try:
            if not (self._record(step).is_file() and path.is_file()):  # opening a pipe would block
                return False
            size, sha256 = json.loads(self._record(step).read_bytes())[path.name]
            return FileEntry.of(path) == FileEntry(size, sha256)
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            return False

    def _ranges(self, step: int) -> Path:
        return self.folder / f"ranges-{step:04}.safetensors"

    def _record(self, step: int) -> Path:
        return self.folder / f"step-{step:04}.json"


@dataclass(frozen=True)
class States:
    """The streams of all samples between two layers, in one file; memory never holds more than one sample's.

    Samples of ``lengths`` tokens, ``[1,S,H]`` each, are stored consecutively in the compute type.
    """

    lengths: Sequence[int]
    hidden_size: int
    dtype: torch.dtype

    def write(self, path: Path, streams: Iterable[Tensor]) -> None:
        """Write one stream per sample to a new file, as they come."""
        import torch

        with path.open("wb") as file:
            for stream in streams:
                file.write(stream.detach().cpu().contiguous().view(torch.uint8).numpy().data)

    def read(self, path: Path) -> Iterator[Tensor]:
        """Yield the streams in order; each may be modified."""
        import torch

        with path.open("rb") as file:
            for length in self.lengths:
                # Memory allocated by torch: the last bits of a matmul depend on the alignment of its operands.
                stream = torch.empty(1, length, self.hidden_size, dtype=self.dtype)
                raw = stream.view(torch.uint8).numpy()
                if file.readinto(raw.data) != raw.nbytes:
                    raise EnvironmentProblem(f"{path} was truncated while being read", fix="run the same command again")
                yield stream


def _empty(folder: Path, exceptions: Collection[str] = ()) -> None:
    for path in folder.iterdir():
        if path.name != ORIGIN_FILE and path.name not in exceptions:
            remove(path)
