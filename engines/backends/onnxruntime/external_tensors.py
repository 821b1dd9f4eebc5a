"""The tensors of an ONNX file that are stored in other files.

They are read without the ``onnx`` package, which serving hosts do not install. Field numbers are those of onnx.proto,
which only ever adds fields.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ....plugins.number_types import NUMBER_TYPES, NumberType

_GRAPH, _INITIALIZER = 7, 5  # ModelProto, GraphProto
_DIMS, _TYPE, _NAME, _EXTERNAL = 1, 2, 8, 13  # TensorProto
_KEY, _VALUE = 1, 2  # StringStringEntryProto
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types
_IN_NUMPY = {each.onnx: each for each in NUMBER_TYPES if hasattr(np, each.numpy)}


@dataclass(frozen=True)
class ExternalTensor:
    """A tensor of ``dims`` whose numbers begin at byte ``offset`` of ``file``, a path relative to the ONNX file."""

    name: str
    type: NumberType
    dims: tuple[int, ...]
    file: str
    offset: int

    @property
    def end(self) -> int:
        """The byte after the last number."""
        return self.offset + self.type.bytes(math.prod(self.dims))


def external_tensors(model: bytes) -> list[ExternalTensor]:
    """Return the initializers of a serialized model that are stored in other files.

    Tensors of types that NumPy lacks are left out. Raises ``ValueError`` for bytes that are not an ONNX model.
    """
    found = []
    for graph in _messages(memoryview(model), _GRAPH):
        found += [tensor for each in _messages(graph, _INITIALIZER) if (tensor := _tensor(each))]
    return found


def _tensor(message: memoryview) -> ExternalTensor | None:
    fields = list(_fields(message))
    stored = dict(_entry(value) for number, value in fields if number == _EXTERNAL and isinstance(value, memoryview))
    kinds = [_IN_NUMPY.get(value) for number, value in fields if number == _TYPE and isinstance(value, int)]
    names = [_text(value) for number, value in fields if number == _NAME and isinstance(value, memoryview)]
    if "location" not in stored or not names or not kinds or kinds[-1] is None:
        return None
    dims = tuple(value for number, value in fields if number == _DIMS and isinstance(value, int))
    tensor = ExternalTensor(names[-1], kinds[-1], dims, stored["location"], int(stored.get("offset", 0)))
    return tensor if int(stored.get("length", tensor.end - tensor.offset)) == tensor.end - tensor.offset else None


def _entry(message: memoryview) -> tuple[str, str]:
    fields = {number: _text(value) for number, value in _fields(message) if isinstance(value, memoryview)}
    return fields.get(_KEY, ""), fields.get(_VALUE, "")


def _text(value: memoryview) -> str:
    return str(value, "utf-8")


def _messages(message: memoryview, number: int) -> Iterator[memoryview]:
    return (value for found, value in _fields(message) if found == number and isinstance(value, memoryview))


def _fields(message: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Yield the number and value of every field: an integer or bytes. Raises ``ValueError``."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        if tag & 7 == _VARINT:
            value, at = _varint(message, at)
            yield tag >> 3, value
            continue
        if tag & 7 == _BYTES:
            length, at = _varint(message, at)
        elif tag & 7 in (_FIXED32, _FIXED64):
            length = 4 if tag & 7 == _FIXED32 else 8
        else:
            raise ValueError(f"wire type {tag & 7} is unknown")
        if length > len(message) - at:
            raise ValueError("a field ends after its message")
        yield tag >> 3, message[at : at + length]
        at += length


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    """Return an integer, and the position after it. Raises ``ValueError``."""
    value = shift = 0
    for byte in message[at : at + 10]:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at + shift // 7
    raise ValueError("an integer does not end")
