"""The names of dtypes, as specs have them, and TensorRT's."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from ..errors import BuildError
from ..numbers import BY_NAME, BY_TENSORRT


def to_tensorrt(trt: ModuleType, name: str) -> Any:
    """Return the ``trt.DataType`` of a name such as ``"float16"``."""
    return getattr(trt.DataType, BY_NAME[name].tensorrt)


def to_name(dtype: Any) -> str:
    """Return the name of a ``trt.DataType``; for one that is not known here, TensorRT's own in lower case."""
    member = str(dtype.name)
    return BY_TENSORRT[member].name if member in BY_TENSORRT else member.lower()


def check_spec_dtypes(op: str, names: tuple[str, ...]) -> None:
    """Raise ``BuildError`` for a dtype that has no name in TensorRT."""
    if unknown := sorted(name for name in set(names) if name not in BY_NAME or not BY_NAME[name].tensorrt):
        raise BuildError(f"{op}: TensorRT has no dtype for {', '.join(unknown)}")
