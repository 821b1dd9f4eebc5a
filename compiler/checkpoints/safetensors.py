"""Read and write ``.safetensors`` files by offset, some rows of a tensor at a time; headers are fully validated.

The format is small enough to implement here, which avoids torch and turns every kind of damage into a ``BuildError``.
"""

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

from ...plugins.errors import BuildError
from ...plugins.number_types import BY_SAFETENSORS
from ...plugins.problems import shown
from ...plugins.regular_files import require_regular
from ...plugins.unique_keys import unique_keys
from .json_files import parse_json

# Types that this package does not compute with have only a size.
_BITS = {name: kind.bits for name, kind in BY_SAFETENSORS.items()} | {
    "F64": 64, "C64": 64, "F8_E5M2": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "F6_E2M3": 6, "F6_E3M2": 6, "F4": 4,
    "I16": 16, "U64": 64, "U32": 32, "U16": 16,
}  # fmt: skip
# The NumPy type of each stored type: the values themselves, or raw bits if NumPy lacks the type.
_STORED: dict[str, np.dtype[Any]] = {
    "F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype("<u2"),
    "F8_E4M3": np.dtype("u1"), "F8_E8M0": np.dtype("u1"), "U8": np.dtype("u1"),
    "I64": np.dtype("<i8"), "I32": np.dtype("<i4"), "BOOL": np.dtype("?"),
}  # fmt: skip
_MAX_HEADER = 100_000_000  # the limit of the format's own reader
_MAX_RANK = 64  # of a NumPy array
_ALIGNMENT = 8
_OTHER_FORMATS = {
    b"PK\x03\x04": "a PyTorch archive, which can execute code and is not supported",
    b"\x80": "a Python pickle, which can execute code and is not supported",
    b"version https://git-lfs": "a Git LFS pointer: the weights themselves were not downloaded",
    b"<": "a web page, probably a failed download",
}


@dataclass(frozen=True)
class TensorEntry:
    """The location of one tensor in a file: ``begin`` and ``end`` are absolute offsets in ``file``."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def read_header(path: Path) -> dict[str, TensorEntry]:
    """Map names to tensors without reading weights. ``BuildError`` unless header and file size agree exactly."""
    try:
        require_regular(path)
        size = path.stat().st_size
        with path.open("rb") as file:
            head = file.read(32)
            length = struct.unpack("<Q", head[:8])[0] if len(head) >= 8 else -1
            if not 2 <= length <= min(_MAX_HEADER, size - 8):
                raise _foreign(path, head, size)
            file.seek(8)
            raw = file.read(length)
    except OSError as error:
        raise BuildError(
            f"cannot read {path}", why=str(error), fix="check that the file exists and is readable"
        ) from None
    try:
        header = parse_json(raw, unique_keys)
    except (ValueError, RecursionError) as error:
        raise _damaged(path, f"the header is not valid JSON ({error})") from None
    if not isinstance(header, dict):
        raise _damaged(path, "the header is not a JSON object")
    header.pop("__metadata__", None)
    entries = {name: _entry(path, name, item, 8 + length) for name, item in header.items()}
    end = 8 + length
    for name, entry in sorted(entries.items(), key=lambda pair: (pair[1].begin, pair[1].end)):
        if entry.begin != end:
            raise _damaged(path, f"the data of {shown(name)} does not directly follow the previous tensor")
        end = entry.end
    if end != size:
        why = f"the header describes {end} bytes, but the file has {size}"
        raise _damaged(path, why + (": the file is truncated" if size < end else ""))
    return entries


def read_rows(name: str, entry: TensorEntry, begin: int, end: int) -> np.ndarray[Any, Any]:
    """Read rows ``begin`` to ``end`` along axis 0, as stored. A tensor without axes has one row."""
    dtype, row = _STORED[entry.dtype], math.prod(entry.shape[1:])
    count = (end - begin) * row
    try:
        with entry.file.open("rb", buffering=0) as file:  # not mapped: mapped pages stay resident
            file.seek(entry.begin + begin * row * dtype.itemsize)
            raw = np.fromfile(file, dtype, count)
    except OSError as error:
        raise BuildError(f"cannot read {entry.file}", why=str(error), fix="check the file and the disk") from None
    if raw.size != count:
        raise _damaged(entry.file, f"the file ends inside {name}: it was truncated while it was read")
    return raw.reshape((end - begin, *entry.shape[1:]) if entry.shape else ())


@dataclass(frozen=True)
class Slot:
    """One tensor of the file; ``dtype`` is the format's name for its type, such as ``F8_E4M3``."""

    dtype: str
    shape: tuple[int, ...]
    nbytes: int

    @property
    def _width(self) -> int:
        """Bytes per value; the maximum if the type is unknown."""
        count = math.prod(self.shape)
        return self.nbytes // count if count else _ALIGNMENT


class Shard:
    """An open file of full size, filled tensor by tensor in any order."""

    def __init__(self, file: BinaryIO, slots: Mapping[str, Slot]) -> None:
        """Write the header. Larger types come first, so that every tensor is aligned to its element size."""
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

    def write(self, name: str, numbers: np.ndarray[Any, Any]) -> None:
        """Write the next values of a tensor, in their stored type."""
        self._file.seek(self._next[name])
        self._file.write(np.ascontiguousarray(numbers).reshape(-1).view(np.uint8).data)
        self._next[name] += numbers.nbytes


@contextmanager
def writing_shard(path: Path, slots: Mapping[str, Slot]) -> Iterator[Shard]:
    """Create a file at ``path`` with room for ``slots``."""
    with path.open("wb") as file:
        yield Shard(file, slots)


def _entry(path: Path, name: str, item: Any, base: int) -> TensorEntry:
    fields = item if isinstance(item, Mapping) else {}
    dtype, shape, offsets = fields.get("dtype"), _sizes(fields.get("shape")), _sizes(fields.get("data_offsets"))
    if not isinstance(dtype, str) or dtype not in _BITS:
        raise _damaged(path, f"{shown(name)} has the unknown type {shown(repr(dtype))}")
    if shape is None or math.prod(max(size, 1) for size in shape) >= 2**60 or offsets is None or len(offsets) != 2:
        raise _damaged(path, f"{shown(name)} has an invalid shape or offsets")
    begin, end = offsets
    if 8 * (end - begin) != math.prod(shape) * _BITS[dtype]:
        raise _damaged(path, f"{shown(name)} has {end - begin} bytes, which does not match its shape {list(shape)}")
    return TensorEntry(path, dtype, shape, base + begin, base + end)


def _sizes(value: Any) -> tuple[int, ...] | None:
    """Return a valid list of sizes or offsets, or None."""
    if not isinstance(value, list) or len(value) > _MAX_RANK:
        return None
    return tuple(value) if all(type(item) is int and 0 <= item < 2**60 for item in value) else None


def _foreign(path: Path, head: bytes, size: int) -> BuildError:
    for magic, description in _OTHER_FORMATS.items():
        if head.startswith(magic):
            return _not_safetensors(path, f"the file is {description}")
    if size < 8:
        return _damaged(path, f"the file has only {size} bytes")
    return _damaged(path, "the header is longer than the file: the file is truncated, or has another format")


def _not_safetensors(path: Path, why: str) -> BuildError:
    return BuildError(
        f"{path} is not a safetensors file",
        why=why,
        fix="download the model's safetensors files, or convert it with `save_pretrained` of transformers",
    )


def _damaged(path: Path, why: str) -> BuildError:
    return BuildError(f"{path} is a damaged safetensors file", why=why, fix="download or copy the file again")
