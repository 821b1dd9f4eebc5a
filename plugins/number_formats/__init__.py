"""The number formats of ``--precision``, one file each. To add one, add a file and its line in the table.

All other modules read the table. Beyond its record, a format only needs a kernel, if it has one.
"""

from __future__ import annotations

from .fp8 import FP8
from .int4 import INT4
from .int8 import INT8
from .mxfp8 import MXFP8
from .number_format import (
    AFFINE,
    CacheUse,
    Group,
    IntegerKernels,
    NumberFormat,
    OnnxRuntimeSupport,
    PrecisionLimits,
    Scheme,
    TensorRTSupport,
)
from .stored import STORED
from .wide import BF16, FP16, FP32

__all__ = [
    "AFFINE",
    "BF16",
    "FP8",
    "FP16",
    "FP32",
    "INT4",
    "INT8",
    "MXFP8",
    "NUMBER_FORMATS",
    "STORED",
    "CacheUse",
    "Group",
    "IntegerKernels",
    "NumberFormat",
    "OnnxRuntimeSupport",
    "PrecisionLimits",
    "Scheme",
    "TensorRTSupport",
    "format_of_type",
    "format_stored_as",
    "keeps_blocks",
    "kernels_of",
    "quantized_formats",
    "wide_formats",
]

# In display order.
NUMBER_FORMATS: dict[str, NumberFormat] = {
    each.name: each for each in (FP32, FP16, BF16, FP8, MXFP8, INT8, INT4, STORED)
}


def wide_formats() -> tuple[NumberFormat, ...]:
    """Return the formats that a whole model can be in."""
    return tuple(each for each in NUMBER_FORMATS.values() if not each.is_quantized)


def quantized_formats(*, tensorrt: bool | None = None) -> tuple[NumberFormat, ...]:
    """Return the formats of quantized matrices: all, or those of TensorRT (True) or ONNX Runtime (False)."""
    every = tuple(each for each in NUMBER_FORMATS.values() if each.is_quantized)
    if tensorrt is None:
        return every
    return tuple(each for each in every if (each.tensorrt if tensorrt else each.onnxruntime) is not None)


def kernels_of(name: str) -> IntegerKernels | None:
    """Return the CPU kernels that multiply the named format; None if there are none or the format is unknown."""
    return NUMBER_FORMATS[name].kernels if name in NUMBER_FORMATS else None


def keeps_blocks(name: str) -> bool:
    """Return True if matrices in the named format keep the blocks of their file."""
    return name in NUMBER_FORMATS and NUMBER_FORMATS[name].as_stored


def format_stored_as(kind: str) -> NumberFormat | None:
    """Return the format that uses weights stored as ``kind`` (``Q4_1``, ``F8_E4M3``) unchanged, or None."""
    return next((each for each in NUMBER_FORMATS.values() if kind in each.takes), None)


def format_of_type(name: str) -> NumberFormat | None:
    """Return the first format with the element type that ONNX names so in lower case, or None."""
    return next((each for each in NUMBER_FORMATS.values() if each.number_type.name == name), None)
