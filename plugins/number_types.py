"""The number types: their names in every library, and rounding to eight bits.

Every other module gets names, sizes, largest values, nearest E4M3 codes and block scales here, so that compiler,
kernels and references cannot disagree. Needs only NumPy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True)
class NumberType:
    """A number type, from ``smallest`` to ``largest``.

    ``name`` is ONNX's in lower case, as op specs, manifests and reports write it; ``onnx`` its number in a TensorProto.
    ``numpy`` is the name in NumPy, ml_dtypes and torch, ``tensorrt`` the member of ``trt.DataType``, ``safetensors``
    the name in a file's header; empty if there is none. ``in_plans`` are its names in a plan's text and in the
    inspector's output, ``inspected`` the inspector's own. ``--precision`` names a number format, which has a type.
    """

    name: str
    onnx: int
    bits: int
    smallest: float
    largest: float
    numpy: str
    tensorrt: str = ""
    safetensors: str = ""
    in_plans: tuple[str, ...] = ()
    inspected: str = ""

    @property
    def dtype(self) -> np.dtype[Any]:
        """The NumPy dtype, from ml_dtypes (which must be installed) if NumPy lacks it."""
        if hasattr(np, self.numpy):
            return np.dtype(self.numpy)
        import ml_dtypes

        dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, self.numpy))
        return dtype

    @property
    def is_code(self) -> bool:
        """True if its numbers need a scale, so that no other number is ever converted to it."""
        return self.bits <= 8

    @property
    def codes_per_byte(self) -> int:
        """Elements per byte, the first in the low bits; 1 for wider types."""
        return max(8 // self.bits, 1)

    def bytes(self, count: int) -> int:
        """Return the bytes that ``count`` elements take when packed; a partly filled last byte counts."""
        return -(-count * self.bits // 8)


_F16, _F32, _BF16 = 65504.0, 3.4028234663852886e38, 3.3895313892515355e38
NUMBER_TYPES: tuple[NumberType, ...] = (
    NumberType("float32", 1, 32, -_F32, _F32, "float32", "FLOAT", "F32", ("float", "fp32"), "Float"),
    NumberType("float16", 10, 16, -_F16, _F16, "float16", "HALF", "F16", ("half", "fp16"), "Half"),
    NumberType("bfloat16", 16, 16, -_BF16, _BF16, "bfloat16", "BF16", "BF16", ("bfloat", "bf16"), "BFloat16"),
    NumberType(
        "float8e4m3fn", 17, 8, -448.0, 448.0, "float8_e4m3fn", "FP8", "F8_E4M3", ("fp8_e4m3", "fp8", "e4m3"), "FP8"
    ),
    NumberType("float8e8m0", 24, 8, 2.0**-127, 2.0**127, "float8_e8m0fnu", "E8M0", "F8_E8M0"),
    NumberType("int64", 7, 64, -(2.0**63), 2.0**63 - 1, "int64", "INT64", "I64", (), "Int64"),
    NumberType("int32", 6, 32, -(2.0**31), 2.0**31 - 1, "int32", "INT32", "I32", (), "Int32"),
    NumberType("int8", 3, 8, -128, 127, "int8", "INT8", "I8", ("int8",), "Int8"),
    NumberType("uint8", 2, 8, 0, 255, "uint8", "UINT8", "U8", (), "UInt8"),
    NumberType("int4", 22, 4, -8, 7, "int4", "INT4", "", ("int4",)),
    NumberType("uint4", 21, 4, 0, 15, "uint4"),
    NumberType("bool", 9, 8, 0, 1, "bool", "BOOL", "BOOL", (), "Bool"),
)
FLOAT32, FLOAT16, BFLOAT16, E4M3, E8M0, INT64, INT32, INT8, UINT8, INT4, UINT4, BOOL = NUMBER_TYPES

BY_NAME: Mapping[str, NumberType] = {kind.name: kind for kind in NUMBER_TYPES}
BY_NUMPY: Mapping[str, NumberType] = {kind.numpy: kind for kind in NUMBER_TYPES}
BY_ONNX: Mapping[int, NumberType] = {kind.onnx: kind for kind in NUMBER_TYPES}
BY_TENSORRT: Mapping[str, NumberType] = {kind.tensorrt: kind for kind in NUMBER_TYPES if kind.tensorrt}
BY_SAFETENSORS: Mapping[str, NumberType] = {kind.safetensors: kind for kind in NUMBER_TYPES if kind.safetensors}

MX_BLOCK = 32  # numbers that share a power of two in the OCP Microscaling formats
FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)  # by code (E2M1)
E8M0_BIAS = 127  # exponent bias of E8M0

_AT_ONCE = 1 << 18  # numbers per chunk: fits a few processor caches, and keeps threads busy
_BIAS, _MANTISSA, _NAN, _SIGN = 7, 3, 0x7F, 0x80  # E4M3: exponent bias, mantissa bits, codes


def tensorrt_name(dtype: Any) -> str:
    """Return the name of a ``trt.DataType``; for one not in the table, TensorRT's own in lower case."""
    member = str(dtype.name)
    return BY_TENSORRT[member].name if member in BY_TENSORRT else member.lower()


def to_e4m3(values: Array) -> Array:
    """Return the nearest E4M3 codes of numbers taken as float32: uint8, same shape.

    Ties go to even; values beyond 448, infinities included, become 448 with their sign; NaN stays NaN.
    """
    wide = np.ascontiguousarray(values, np.float32)
    bits, codes, table = wide.reshape(-1).view(np.uint32), np.empty(wide.size, np.uint8), _e4m3_of_halves()
    for at in range(0, bits.size, _AT_ONCE):
        piece = bits[at : at + _AT_ONCE]
        # The upper half, made odd if the lower half is not zero: it rounds like the whole number.
        upper_halves = (piece >> np.uint32(16)).astype(np.uint16)
        upper_halves |= (piece & np.uint32(0xFFFF)) != 0
        table.take(upper_halves, out=codes[at : at + _AT_ONCE], mode="wrap")
    return codes.reshape(np.shape(values))


def from_e4m3(codes: Array) -> Array:
    """Return the float32 values of E4M3 codes (uint8)."""
    numbers: Array = _e4m3_numbers()[codes]
    return numbers


def nearest_e4m3(values: Array) -> Array:
    """Return numbers rounded to E4M3, as float32."""
    return from_e4m3(to_e4m3(values))


def scales_of(amax: Array | float, largest: float) -> Array:
    """Return the scales with which the ``largest`` code means ``amax``: float32, same shape."""
    scales: Array = np.asarray(np.asarray(amax, np.float32) / np.float32(largest))
    return scales


def usable(scales: Array) -> Array:
    """Return the scales, with 1 in place of those too small to divide by: everything they scale is zero."""
    return np.where(abs(scales) >= np.finfo(np.float32).tiny, scales, np.float32(1)).astype(np.float32)


def powers_of_two(amax: Array) -> Array:
    """Return the scale of a block with maximum ``amax``: the least power of two with amax / scale <= 448.

    float32, of the shape of ``amax``, from 2**-127 up. No number saturates, unlike in the example of OCP Microscaling
    Formats 1.0, 6.3, which rounds the exponent down. Source: cuDNN's block scale quantize (scale = round_up(amax /
    vmax)), the conversion of CUDA's ``__nv_fp8_e8m0``, and ModelOpt's ``compute_e8m0``, all of NVIDIA.
    """
    reach, of_largest = np.frexp(np.float32(E4M3.largest))  # 0.875 * 2 ** 9
    mantissa, exponent = np.frexp(np.asarray(amax, np.float32))
    power = exponent - of_largest + (mantissa > reach)
    power = np.where(mantissa > 0, power, -E8M0_BIAS)
    scale: Array = np.ldexp(np.float32(1), np.clip(power, -E8M0_BIAS, E8M0_BIAS))
    return scale


def to_e8m0(powers: Array) -> Array:
    """Return powers of two as MX formats store them: uint8, the exponent + 127."""
    codes: Array = (np.frexp(powers)[1] + (E8M0_BIAS - 1)).astype(np.uint8)
    return codes


def from_e8m0(codes: Array) -> Array:
    """Return the powers of two of E8M0 codes (uint8), float32; the last code is NaN."""
    numbers: Array = _e8m0_numbers()[codes]
    return numbers


@cache
def _e4m3_numbers() -> Array:
    """The value of each of the 256 codes, float32. Two are NaN and none is infinite."""
    code = np.arange(256)
    exponent, mantissa = (code & _NAN) >> _MANTISSA, code & 7
    normal = np.ldexp(1 + mantissa / 8, exponent - _BIAS)
    size = np.where(exponent > 0, normal, np.ldexp(mantissa / 8, 1 - _BIAS))
    size[(code & _NAN) == _NAN] = np.nan
    return np.where(code & _SIGN, -size, size).astype(np.float32)


@cache
def _e4m3_of_halves() -> Array:
    """The nearest code of every float32 whose lower half is zero, indexed by its upper half: 65536 codes, uint8."""
    numbers = (np.arange(1 << 16, dtype=np.uint32) << np.uint32(16)).view(np.float32)
    sizes = _e4m3_numbers()[:_NAN]
    middles = (sizes[1:] + sizes[:-1]) / 2
    below, up_to = (np.searchsorted(middles, abs(numbers), side) for side in ("left", "right"))
    codes = np.where(below % 2, up_to, below)
    codes[np.isnan(numbers)] = _NAN
    return np.where(np.signbit(numbers), codes | _SIGN, codes).astype(np.uint8)


@cache
def _e8m0_numbers() -> Array:
    """Powers of two from 2^-127 to 2^127, and NaN."""
    powers = np.ldexp(np.float32(1), np.arange(-E8M0_BIAS, E8M0_BIAS + 1))
    return np.append(powers, np.float32(np.nan)).astype(np.float32)
