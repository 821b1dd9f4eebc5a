"""Calls of the C++ library's plugins without TensorRT, through the positions of virtual functions."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from peagle.plugins.op_spec import OpSpec, evaluate_dim

CREATE_PLUGIN, PLUGIN_NAME = 4, 6  # of a creator
CAPABILITY = 4  # of a plugin
SHAPES, ENQUEUE, ATTACH = 5, 6, 7  # of its run-time interface
RUNTIME, INT64 = 2, 10  # PluginCapabilityType, PluginFieldType
TYPES = {"float32": 0, "float16": 1, "int32": 3, "bool": 4, "float8e4m3fn": 6, "bfloat16": 7, "int64": 8}  # DataType


class Desc(ctypes.Structure):
    """``PluginTensorDesc``."""

    _fields_ = (
        ("count", ctypes.c_int32),
        ("sizes", ctypes.c_int64 * 8),
        ("type", ctypes.c_int32),
        ("format", ctypes.c_int32),
        ("scale", ctypes.c_float),
    )


class Field(ctypes.Structure):
    """``PluginField``."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("data", ctypes.c_void_p),
        ("type", ctypes.c_int32),
        ("length", ctypes.c_int32),
    )


class Fields(ctypes.Structure):
    """``PluginFieldCollection``."""

    _fields_ = (("count", ctypes.c_int32), ("fields", ctypes.POINTER(Field)))


def call(thing: int, place: int, result: Any, *arguments: Any) -> Any:
    """Call the function at a position in a C++ object's virtual table."""
    table = ctypes.cast(thing, ctypes.POINTER(ctypes.POINTER(ctypes.c_void_p)))[0]
    kinds = [type(argument) for argument in arguments]
    return ctypes.CFUNCTYPE(result, ctypes.c_void_p, *kinds)(table[place])(thing, *arguments)


class LibraryLauncher:
    """The plugin of an op, attached as TensorRT attaches it; launched as ``Launcher`` is."""

    def __init__(self, library: Path, op: OpSpec, attributes: Mapping[str, int]) -> None:
        self.op = op
        opened, count = ctypes.CDLL(str(library)), ctypes.c_int32()
        opened.getCreators.restype = ctypes.POINTER(ctypes.c_void_p)
        creators = opened.getCreators(ctypes.byref(count))
        by_name = {call(creators[i], PLUGIN_NAME, ctypes.c_char_p): creators[i] for i in range(count.value)}
        values = {name: ctypes.c_int64(value) for name, value in attributes.items()}
        pairs = [(name.encode(), ctypes.addressof(value), INT64, 1) for name, value in values.items()]
        given = (Field * len(pairs))(*pairs)
        fields = ctypes.pointer(Fields(len(pairs), given))
        arguments = (ctypes.c_char_p(b"node"), fields, ctypes.c_int32(RUNTIME))
        made = call(by_name[op.name.encode()], CREATE_PLUGIN, ctypes.c_void_p, *arguments)
        attached = call(self._runtime(made), ATTACH, ctypes.c_void_p, ctypes.c_void_p())
        self.runtime = self._runtime(attached)

    def _runtime(self, plugin: int | None) -> int:
        assert plugin, f"the library makes no plugin of {self.op.name}"
        return int(call(plugin, CAPABILITY, ctypes.c_void_p, ctypes.c_int32(RUNTIME)))

    def launch(
        self,
        stream: int,
        pointers: Sequence[int],
        dims: Mapping[str, int],
        attributes: Mapping[str, int],
        dtype: str | None = None,
    ) -> None:
        """Tell the plugin the shapes, and enqueue it."""
        op = self.op
        typed_by = op.kernel.typed_by if op.kernel else None
        dtypes = [str(dtype) if each.name == typed_by else each.dtypes[0] for each in op.inputs]
        for i, operand in enumerate(op.inputs):
            dtypes[i] = (
                dtypes[[each.name for each in op.inputs].index(operand.same_as)] if operand.same_as else dtypes[i]
            )
        sizes = dict(dims) | dict(attributes)
        inputs = self._described(op.inputs, dtypes, sizes)
        outputs = self._described(op.outputs, op.infer_dtypes(dtypes), sizes)
        counts = (ctypes.c_int32(len(op.inputs)), ctypes.c_int32(len(op.outputs)))
        assert call(self.runtime, SHAPES, ctypes.c_int32, inputs, counts[0], outputs, counts[1]) == 0
        split = len(op.inputs)
        read = (ctypes.c_void_p * split)(*pointers[:split])
        written = (ctypes.c_void_p * len(op.outputs))(*pointers[split:])
        arguments = (inputs, outputs, read, written, ctypes.c_void_p(), ctypes.c_void_p(stream))
        assert call(self.runtime, ENQUEUE, ctypes.c_int32, *arguments) == 0

    @staticmethod
    def _described(operands: Sequence[Any], dtypes: Sequence[str], sizes: Mapping[str, int]) -> Any:
        descs = (Desc * len(operands))()
        for desc, operand, dtype in zip(descs, operands, dtypes, strict=True):
            shape = [int(evaluate_dim(dim, sizes)) for dim in operand.dims]
            desc.count, desc.type, desc.scale = len(shape), TYPES[dtype], 1.0
            desc.sizes[: len(shape)] = shape
        return descs
