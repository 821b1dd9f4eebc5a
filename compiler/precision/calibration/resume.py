"""What an unfinished calibration keeps, step by step, so that the same command goes on where it was interrupted.

Each finished step leaves its ranges (small) and the streams that leave it (large). The streams of a step are removed
once those of the next are safely there.
"""

from __future__ import annotations

import json
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
from ...store.made_for import FILE_NAME as MADE_FOR
from ...store.stages import StageStore, stage_key

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Array = np.ndarray[Any, Any]

_NAME = "calibrate"


@dataclass(frozen=True)
class Kept:
    """The folder of one calibration: its steps are numbered from 0."""

    folder: Path

    @classmethod
    @contextmanager
    def open(cls, store: StageStore, make: Callable[..., object], key_parts: Any, needed: int) -> Iterator[Kept]:
        """Lock and give the folder of what the code of ``make`` makes of ``key_parts``.

        ``needed`` is the size to name when the disk is full.
        """
        with writing(store.root, needed), store.place(_NAME, stage_key(_NAME, make, key_parts)) as folder:
            folder.mkdir(mode=0o700, exist_ok=True)
            if store.force:
                _empty(folder)
            store.note(folder)
            yield cls(folder)

    def finished(self) -> int:
        """The number of steps that are done and undamaged; everything else is removed."""
        count = 0
        while self._ranges_whole(count):
            count += 1
        if count and not self._whole(count - 1, self.streams(count - 1)):
            count = 0
        kept = [path for step in range(count) for path in (self._record(step), self._ranges(step))]
        _empty(self.folder, {path.name for path in (*kept, *([self.streams(count - 1)] if count else []))})
        return count

    def streams(self, step: int) -> Path:
        """The file of the streams that leave ``step``."""
        return self.folder / f"streams-{step:04}.bin"

    @property
    def scratch(self) -> Path:
        """The file that the streams of a step are written to before it is finished."""
        return self.folder / "streams.partial"

    def ranges(self, step: int) -> dict[str, Array]:
        """The ranges that ``finish`` was given."""
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
        flush(self._ranges(step), self.streams(step), partial, self.folder)  # the files of earlier steps were flushed
        partial.rename(self._record(step))
        flush(self.folder)
        for older in self.folder.glob("streams-*.bin"):
            if older != self.streams(step):
                older.unlink()

    def _ranges_whole(self, step: int) -> bool:
        return self._whole(step, self._ranges(step))

    def _whole(self, step: int, path: Path) -> bool:
        try:
            if not (self._record(step).is_file() and path.is_file()):  # a pipe would wait for a writer
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
    """The streams of all samples between two layers, in one file: in memory there is never more than one sample's.

    Samples of ``lengths`` tokens, ``[1,S,H]`` each, are stored one behind the other in the type computed in.
    """

    lengths: Sequence[int]
    hidden_size: int
    dtype: torch.dtype

    def write(self, path: Path, streams: Iterable[Tensor]) -> None:
        """Make the file out of one stream per sample, written as they come."""
        import torch

        with path.open("wb") as file:
            for stream in streams:
                file.write(stream.detach().cpu().contiguous().view(torch.uint8).numpy().data)

    def read(self, path: Path) -> Iterator[Tensor]:
        """The streams in order; each may be written into."""
        import torch

        with path.open("rb") as file:
            for length in self.lengths:
                # Memory of torch's own: the last bits of a matmul depend on how its operands are aligned.
                stream = torch.empty(1, length, self.hidden_size, dtype=self.dtype)
                raw = stream.view(torch.uint8).numpy()
                if file.readinto(raw.data) != raw.nbytes:
                    raise EnvironmentProblem(
                        f"{path} became shorter while it was read", fix="run the same command again"
                    )
                yield stream


def _empty(folder: Path, kept: Collection[str] = ()) -> None:
    for path in folder.iterdir():
        if path.name != MADE_FOR and path.name not in kept:
            remove(path)
