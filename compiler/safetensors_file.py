"""One ``.safetensors`` file, read by offset: the header first and checked whole, then one tensor at a time.

The format is small enough to read here, which keeps torch out and turns every kind of damage into a ``BuildError``.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..plugins.errors import BuildError

_ITEMSIZE = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1,
    "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2, "U8": 1, "BOOL": 1,
}  # fmt: skip
_READABLE: dict[str, np.dtype[Any]] = {
    "F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype("<u2"),
    "I64": np.dtype("<i8"), "I32": np.dtype("<i4"), "BOOL": np.dtype("?"),
}  # fmt: skip
_MAX_HEADER = 100_000_000  # the limit of the format's own reader
_OTHER_FORMATS = {
    b"PK\x03\x04": "a PyTorch archive, which may hold code and is not read",
    b"\x80": "a Python pickle, which may hold code and is not read",
    b"version https://git-lfs": "a Git LFS pointer: the weights themselves were not downloaded",
    b"<": "a web page, probably a failed download",
}


@dataclass(frozen=True)
class TensorEntry:
    """Where one tensor lies: ``begin`` and ``end`` are absolute offsets in ``file``."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def read_header(path: Path) -> dict[str, TensorEntry]:
    """Every tensor of a file by name, without reading weights. ``BuildError`` unless header and size agree exactly."""
    try:
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
        header = json.loads(raw, object_pairs_hook=_no_duplicates)
    except (ValueError, RecursionError) as error:
        raise _damaged(path, f"its header is not JSON ({error})") from None
    if not isinstance(header, dict):
        raise _damaged(path, "its header is not an object")
    header.pop("__metadata__", None)
    entries = {name: _entry(path, name, item, 8 + length) for name, item in header.items()}
    end = 8 + length
    for name, entry in sorted(entries.items(), key=lambda pair: (pair[1].begin, pair[1].end)):
        if entry.begin != end:
            raise _damaged(path, f"the data of {name} does not follow the tensor before it")
        end = entry.end
    if end != size:
        why = f"its header describes {end} bytes and it has {size}"
        raise _damaged(path, why + (": it is truncated" if size < end else ""))
    return entries


def read_tensor(name: str, entry: TensorEntry) -> np.ndarray[Any, Any]:
    """One tensor: floats as float32, checked to be finite; int64, int32 and bool as they are."""
    if entry.dtype not in _READABLE:
        raise BuildError(
            f"{entry.file}: {name} is stored as {entry.dtype}",
            why="only BF16, FP16 and FP32 weights can be read for now",
            fix="use a BF16, FP16 or FP32 checkpoint of the model",
        )
    try:
        with entry.file.open("rb") as file:
            file.seek(entry.begin)
            raw = np.fromfile(file, _READABLE[entry.dtype], math.prod(entry.shape))
    except OSError as error:
        raise BuildError(f"cannot read {entry.file}", why=str(error), fix="check the file and its disk") from None
    if raw.size != math.prod(entry.shape):
        raise _damaged(entry.file, f"it ends inside {name}: it became shorter while it was read")
    values: np.ndarray[Any, Any] = raw.reshape(entry.shape)
    if entry.dtype == "BF16":
        values = (values.astype(np.uint32) << 16).view(np.float32)
    elif entry.dtype == "F16":
        values = values.astype(np.float32)
    if values.dtype == np.float32:
        _check_finite(name, entry, values)
    return values


def _check_finite(name: str, entry: TensorEntry, values: np.ndarray[Any, Any]) -> None:
    if np.isfinite(values).all():
        return
    nan, inf = int(np.isnan(values).sum()), int(np.isinf(values).sum())
    raise BuildError(
        f"{entry.file}: {name} holds {nan} NaN and {inf} Inf of {values.size} values",
        why="weights that are not finite make every logit NaN",
        fix="download the file again; if it stays so, the checkpoint itself is broken",
    )


def _entry(path: Path, name: str, item: Any, base: int) -> TensorEntry:
    fields = item if isinstance(item, Mapping) else {}
    dtype, shape, offsets = fields.get("dtype"), _sizes(fields.get("shape")), _sizes(fields.get("data_offsets"))
    if not isinstance(dtype, str) or dtype not in _ITEMSIZE:
        raise _damaged(path, f"{name} has the unknown type {dtype!r}")
    if shape is None or offsets is None or len(offsets) != 2:
        raise _damaged(path, f"{name} has an impossible shape or offsets")
    begin, end = offsets
    if end - begin != math.prod(shape) * _ITEMSIZE[dtype]:
        raise _damaged(path, f"{name} has {end - begin} bytes, which does not fit its shape {list(shape)}")
    return TensorEntry(path, dtype, shape, base + begin, base + end)


def _sizes(value: Any) -> tuple[int, ...] | None:
    """A list of sizes that an array can have, or None."""
    if not isinstance(value, list) or not all(type(item) is int and item >= 0 for item in value):
        return None
    return tuple(value) if math.prod(max(item, 1) for item in value) < 2**60 else None


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a name appears twice")
    return result


def _foreign(path: Path, head: bytes, size: int) -> BuildError:
    for magic, what in _OTHER_FORMATS.items():
        if head.startswith(magic):
            return _not_safetensors(path, f"it is {what}")
    if size < 8:
        return _damaged(path, f"it has only {size} bytes")
    return _damaged(path, "its header is longer than the file: it is truncated, or of another format")


def _not_safetensors(path: Path, why: str) -> BuildError:
    return BuildError(
        f"{path} is not a safetensors file",
        why=why,
        fix="download the safetensors files of the model, or save it again with `save_pretrained` of transformers",
    )


def _damaged(path: Path, why: str) -> BuildError:
    return BuildError(f"{path} is not a whole safetensors file", why=why, fix="download or copy the file again")
