"""Header of a GGUF file: metadata and tensor locations, fully validated before use.

The ``gguf`` package provides the types and their sizes, but not the reader: its reader trusts every count and size in
the file, and creates arrays for each token, which takes seconds for a vocabulary.
"""

from __future__ import annotations

import math
import struct
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from ....plugins.errors import BuildError
from ....plugins.optional_packages import require
from ....plugins.problems import counted, listed, shown
from ....plugins.regular_files import require_regular
from ..safetensors import TensorEntry

MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_ALIGNMENT = "general.alignment"
_MAX_KEYS = 1 << 16
_MAX_TENSORS = 1 << 18
_MAX_ITEMS = 1 << 21  # of an array: a vocabulary has about 300 000
_MAX_BYTES = 1 << 28  # of the whole header
_MAX_NAME = 1024
_MAX_DIMS = 4
_STRING, _ARRAY = 8, 9
_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_AGAIN = "download or copy the file again"


@dataclass(frozen=True)
class GgufHeader:
    """A parsed header. A tensor's ``dtype`` is the name of its type, such as ``Q4_1``."""

    file: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, TensorEntry]

    @property
    def architecture(self) -> str:
        """The architecture that the file declares; empty if it declares none."""
        declared = self.metadata.get("general.architecture")
        return declared if isinstance(declared, str) else ""


def is_gguf(path: Path) -> bool:
    """Return True if a file has the magic number or the suffix of GGUF."""
    if not path.is_file():
        return False
    try:
        with path.open("rb") as file:
            return file.read(4) == MAGIC or path.suffix.lower() == ".gguf"
    except OSError:
        return path.suffix.lower() == ".gguf"


def read_gguf(path: Path) -> GgufHeader:
    """Read the header of a file. Raises ``BuildError`` unless it is valid and the file holds all that it describes."""
    try:
        require_regular(path)
        size = path.stat().st_size
        with path.open("rb") as file:
            return _Header(path, file, size).read()
    except OSError as error:
        raise BuildError(
            f"cannot read {path}", why=str(error), fix="check that the file exists and is readable"
        ) from None


def damaged(path: Path, why: str) -> BuildError:
    """The error for a damaged file."""
    return BuildError(f"{path} is a damaged GGUF file", why=why, fix=_AGAIN)


class _Header:
    """Sequential reader of a header."""

    def __init__(self, path: Path, file: BinaryIO, size: int) -> None:
        self._path, self._file, self._size, self._at = path, file, size, 0

    def read(self) -> GgufHeader:
        self._check_version()
        tensors, keys = self._count("tensors", _MAX_TENSORS), self._count("keys", _MAX_KEYS)
        metadata: dict[str, Any] = {}
        for _ in range(keys):
            key = self._name("a key")
            if key in metadata:
                raise damaged(self._path, f"the key {shown(key)} appears twice")
            metadata[key] = self._value(self._number("<I"), key)
        described = self._tensors(tensors)
        alignment = metadata.get(_ALIGNMENT, 32)
        if type(alignment) is not int or not 0 < alignment <= 1 << 20 or alignment & (alignment - 1):
            raise damaged(self._path, f"{_ALIGNMENT} must be a power of two, not {shown(repr(alignment))}")
        base = -(-self._at // alignment) * alignment
        return GgufHeader(self._path, metadata, self._placed(described, base, alignment))

    def _check_version(self) -> None:
        head = self._file.read(8)
        self._at = len(head)
        if head[:4] != MAGIC:
            raise BuildError(
                f"{self._path} is not a GGUF file",
                why="the file is empty" if not head else f"the file begins with {head[:4]!r}, not with {MAGIC!r}",
                fix="pass a .gguf file, or a checkpoint folder (config.json and safetensors)",
            )
        version = int.from_bytes(head[4:], "little")
        if len(head) < 8 or version in _VERSIONS:
            return
        order = " in big-endian byte order" if int.from_bytes(head[4:], "big") in _VERSIONS else ""
        raise BuildError(
            f"{self._path} is GGUF version {version}{order}" if not order else f"{self._path} is GGUF{order}",
            why=f"the supported versions are {' and '.join(map(str, _VERSIONS))}, in little-endian byte order",
            fix="convert the model again, with a llama.cpp version from 2024 or later",
        )

    def _tensors(self, count: int) -> dict[str, tuple[tuple[int, ...], int, int]]:
        """Return shape (outermost axis first), type number and offset of each tensor."""
        described: dict[str, tuple[tuple[int, ...], int, int]] = {}
        for _ in range(count):
            name = self._name("a tensor")
            if name in described:
                raise damaged(self._path, f"the tensor {shown(name)} appears twice")
            axes = self._number("<I")
            if not 1 <= axes <= _MAX_DIMS:
                raise damaged(self._path, f"{shown(name)} has {axes} axes; 1 to {_MAX_DIMS} are allowed")
            sizes = tuple(self._number("<Q") for _ in range(axes))
            if not all(0 < size < 2**40 for size in sizes) or math.prod(sizes) >= 2**50:
                raise damaged(self._path, f"{shown(name)} has the impossible shape {list(sizes)}")
            described[name] = (sizes[::-1], self._number("<I"), self._number("<Q"))
        return described

    def _placed(
        self, described: Mapping[str, tuple[tuple[int, ...], int, int]], base: int, alignment: int
    ) -> dict[str, TensorEntry]:
        require("export", "reading GGUF", "gguf")
        from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

        known = {int(each): each for each in GGMLQuantizationType}
        unknown: dict[int, list[str]] = defaultdict(list)
        entries: dict[str, TensorEntry] = {}
        for name, (shape, kind, offset) in described.items():
            if kind not in known:
                unknown[kind].append(name)
                continue
            numbers, size = GGML_QUANT_SIZES[known[kind]]
            if shape[-1] % numbers:
                raise damaged(
                    self._path,
                    f"{shown(name)} has rows of {shape[-1]} values, but {known[kind].name} has blocks of {numbers}",
                )
            if offset % alignment:
                raise damaged(self._path, f"{shown(name)} does not begin at a multiple of {alignment}")
            begin = base + offset
            entries[name] = TensorEntry(
                self._path, known[kind].name, shape, begin, begin + math.prod(shape) // numbers * size
            )
        if unknown:
            kinds = "; ".join(f"{counted(names)} of type {kind}: {listed(names, 3)}" for kind, names in unknown.items())
            raise BuildError(
                f"{self._path} has {kinds}",
                why=f"the installed gguf package supports only the types 0 to {max(known)}",
                fix="use a file of a common type, such as Q8_0, Q6_K, Q4_K or F16",
            )
        end, before = base, ""
        for name, entry in sorted(entries.items(), key=lambda item: item[1].begin):
            if entry.begin < end:
                raise damaged(self._path, f"the data of {shown(name)} overlaps that of {shown(before)}")
            end, before = entry.end, name
        if end > self._size:
            raise damaged(
                self._path, f"the header describes {end} bytes, but the file has {self._size}: the file is truncated"
            )
        return entries

    def _value(self, kind: int, key: str) -> Any:
        if kind == _STRING:
            return self._string(key)
        if kind in _SCALARS:
            return self._number(_SCALARS[kind])
        if kind != _ARRAY:
            raise damaged(self._path, f"{shown(key)} has the type {kind}, which does not exist")
        of, count = self._number("<I"), self._number("<Q")
        if count > _MAX_ITEMS:
            raise damaged(self._path, f"{shown(key)} has {count} items; the limit is {_MAX_ITEMS}")
        if of == _STRING:
            return self._strings(key, count)
        if of not in _SCALARS:
            raise damaged(self._path, f"{shown(key)} is an array of the unknown type {of}")
        code = _SCALARS[of][1]
        return list(struct.unpack(f"<{count}{code}", self._take(count * struct.calcsize(f"<{code}"))))

    def _strings(self, key: str, count: int) -> list[str]:
        return [self._string(key) for _ in range(count)]

    def _string(self, key: str) -> str:
        raw = self._take(self._number("<Q"))
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise damaged(self._path, f"{shown(key)} contains bytes that are not UTF-8: {raw[:20]!r}") from None

    def _name(self, noun: str) -> str:
        length = self._number("<Q")
        if not 0 < length <= _MAX_NAME:
            raise damaged(self._path, f"{noun} has a name of {length} bytes; 1 to {_MAX_NAME} are allowed")
        name = self._take(length).decode(errors="backslashreplace")
        if not name.isprintable() or not name.isascii():
            raise damaged(self._path, f"{noun} has an invalid name: {shown(name)}")
        return name

    def _count(self, noun: str, maximum: int) -> int:
        count = int(self._number("<Q"))
        if count > maximum:
            raise damaged(self._path, f"the header declares {count} {noun}; the limit is {maximum}")
        return count

    def _number(self, struct_format: str) -> Any:
        return struct.unpack(struct_format, self._take(struct.calcsize(struct_format)))[0]

    def _take(self, count: int) -> bytes:
        if self._at + count > self._size:
            raise damaged(
                self._path, f"the file ends inside its header, after {self._size} bytes: the file is truncated"
            )
        if self._at + count > _MAX_BYTES:
            raise damaged(self._path, f"the header is larger than {_MAX_BYTES} bytes")
        self._at += count
        raw = self._file.read(count)
        if len(raw) != count:
            raise damaged(self._path, "the file was truncated while it was read")
        return raw
