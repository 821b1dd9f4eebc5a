"""The names of dtypes, as specs have them, and TensorRT's."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from ..errors import BuildError

_MEMBERS = {
    "float32": "FLOAT",
    "float16": "HALF",
    "bfloat16": "BF16",
    "float8e4m3fn": "FP8",
    "int32": "INT32",
    "int64": "INT64",
    "bool": "BOOL",
}
_NAMES = {member: name for name, member in _MEMBERS.items()}


def to_tensorrt(trt: ModuleType, name: str) -> Any:
    """``trt.DataType`` of a name such as ``"float16"``."""
    return getattr(trt.DataType, _MEMBERS[name])


def to_name(dtype: Any) -> str:
    """The name of a ``trt.DataType``; for one that no op of ours takes, TensorRT's own in lower case."""
    return _NAMES.get(dtype.name, str(dtype.name).lower())


def check_spec_dtypes(op: str, names: tuple[str, ...]) -> None:
    """``BuildError`` for a dtype that has no name in TensorRT."""
    if unknown := sorted(set(names) - _MEMBERS.keys()):
        raise BuildError(f"{op}: TensorRT has no dtype for {', '.join(unknown)}")
