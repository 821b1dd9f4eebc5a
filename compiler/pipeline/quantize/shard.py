"""A safetensors file that is made to its full size first and then filled tensor by tensor, in any order."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

Array = np.ndarray[Any, Any]

_ALIGNMENT = 8


@dataclass(frozen=True)
class Slot:
    """One tensor of the file; ``dtype`` is the format's name of it, as ``F8_E4M3``."""

    dtype: str
    shape: tuple[int, ...]
    nbytes: int

    @property
    def _width(self) -> int:
        """Bytes of one number; the widest there is where there is none."""
        count = math.prod(self.shape)
        return self.nbytes // count if count else _ALIGNMENT


class Shard:
    """An open file; ``write`` puts the next bytes of a tensor."""

    def __init__(self, file: BinaryIO, slots: Mapping[str, Slot]) -> None:
        """Write the header. Wide types come first, so that every tensor lies at a multiple of its width."""
        entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        self._file, self._next, end = file, dict[str, int](), 0
        for name, slot in sorted(slots.items(), key=lambda item: -item[1]._width):  # stable
            entries[name] = {"dtype": slot.dtype, "shape": list(slot.shape), "data_offsets": [end, end + slot.nbytes]}
            self._next[name] = end
            end += slot.nbytes
        header = json.dumps(entries, separators=(",", ":")).encode()
        header += b" " * (-len(header) % _ALIGNMENT)
        file.write(struct.pack("<Q", len(header)) + header)
        base = file.tell()
        self._next = {name: base + offset for name, offset in self._next.items()}
        file.truncate(base + end)

    def write(self, name: str, numbers: Array) -> None:
        """The next numbers of a tensor, as they are to be stored."""
        self._file.seek(self._next[name])
        self._file.write(np.ascontiguousarray(numbers).reshape(-1).view(np.uint8).data)
        self._next[name] += numbers.nbytes


@contextmanager
def writing_shard(path: Path, slots: Mapping[str, Slot]) -> Iterator[Shard]:
    """A new file at ``path`` with room for ``slots``."""
    with path.open("wb") as file:
        yield Shard(file, slots)
