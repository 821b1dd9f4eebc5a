"""Single-node ONNX models, written without the ``onnx`` package, which serving hosts do not install.

Field numbers are those of onnx.proto, which only ever adds fields.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from ..number_types import BY_NUMPY
from ..op_spec import DOMAIN, OPSET, VERSION

_IR_VERSION = 11
_VARINT, _FIXED32, _BYTES = 0, 5, 2  # wire types
_FLOAT, _INT, _STRING = 1, 2, 3  # AttributeProto.AttributeType


def one_node_model(
    op: str,
    inputs: Mapping[str, str | NDArray[Any] | None],
    outputs: Mapping[str, str | None],
    attributes: Mapping[str, Any],
) -> bytes:
    """Return a serialized model with one node and these operands, by name and in order.

    An input is a dtype as NumPy names it (fed), an array (constant) or None (absent); an output is a dtype or None
    (absent). Fed and returned tensors have no declared rank.
    """
    fed = {name: given for name, given in inputs.items() if isinstance(given, str)}
    constants = {name: given for name, given in inputs.items() if given is not None and not isinstance(given, str)}
    node = b"".join(_field(1, "" if given is None else name) for name, given in inputs.items())
    node += b"".join(_field(2, "" if dtype is None else name) for name, dtype in outputs.items()) + _field(4, op)
    node += b"".join(_field(5, _attribute(name, value)) for name, value in attributes.items()) + _field(7, DOMAIN)
    graph = _field(1, node) + _field(2, op) + b"".join(_field(5, _tensor(n, x)) for n, x in constants.items())
    graph += b"".join(_field(11, _value(name, dtype)) for name, dtype in fed.items())
    graph += b"".join(_field(12, _value(name, dtype)) for name, dtype in outputs.items() if dtype is not None)
    opsets = [_field(2, OPSET), _field(1, DOMAIN) + _field(2, VERSION)]
    return _field(1, _IR_VERSION) + _field(7, graph) + b"".join(_field(8, opset) for opset in opsets)


def _value(name: str, dtype: str) -> bytes:
    """A ValueInfoProto: a tensor of one type and any shape."""
    return _field(1, name) + _field(2, _field(1, _field(1, BY_NUMPY[dtype].onnx)))


def _tensor(name: str, array: Any) -> bytes:
    """A TensorProto with its data."""
    dims = b"".join(_field(1, size) for size in array.shape)
    return dims + _field(2, BY_NUMPY[array.dtype.name].onnx) + _field(8, name) + _field(9, array.tobytes())


def _attribute(name: str, value: float | int | str) -> bytes:
    """An AttributeProto."""
    if isinstance(value, str):
        return _field(1, name) + _field(4, value) + _field(20, _STRING)
    if isinstance(value, float):
        return _field(1, name) + _varint(2 << 3 | _FIXED32) + struct.pack("<f", value) + _field(20, _FLOAT)
    return _field(1, name) + _field(3, value) + _field(20, _INT)


def _field(number: int, value: int | str | bytes) -> bytes:
    if isinstance(value, int):
        return _varint(number << 3 | _VARINT) + _varint(value & (1 << 64) - 1)
    content = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | _BYTES) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    groups: list[int] = []
    while value or not groups:
        groups.append(value & 0x7F)
        value >>= 7
    return bytes([*(group | 0x80 for group in groups[:-1]), groups[-1]])
