"""``cvt``: between integers, float formats, and the 8-bit codes of E4M3."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .floats import bfloats, canonical
from .operations import DTYPES, Array, Operation, Table

INTEGERS = tuple(f"{kind}{bits}" for bits in (8, 16, 32, 64) for kind in "us")


def _e4m3_values() -> Array:
    """Return the numbers of the codes 0..0x7e, ascending: 4 bits of exponent of bias 7, 3 of fraction."""
    code = np.arange(0x7F)
    exponent, fraction = code >> 3, code & 7
    return np.where(exponent == 0, fraction * 2.0**-9, (8 + fraction) * 2.0 ** (exponent - 10.0))


E4M3 = _e4m3_values()
_MIDDLES = (E4M3[1:] + E4M3[:-1]) / 2


def e4m3(x: Array) -> Array:
    """Return the code of the nearest E4M3, ties to even; what is larger than 448 is 448, every NaN is 0x7f."""
    size = np.abs(x.astype(np.float64))
    below, above = np.searchsorted(_MIDDLES, size, "left"), np.searchsorted(_MIDDLES, size, "right")
    code = np.where(below % 2 == 0, below, above)  # they differ in a middle only, and one of them is even
    signed = code | np.where(np.signbit(x), 0x80, 0)
    return np.where(np.isnan(x), 0x7F, signed).astype(np.uint16)


def two_e4m3(high: Array, low: Array) -> Array:
    """Return two codes in 16 bits, the first operand in the upper ones."""
    return (e4m3(high) << np.uint16(8)) | e4m3(low)


def to_integer(kind: str) -> Callable[[Array], Array]:
    """Return the conversion that drops the fraction and stops at the ends of the integer's range.

    NaN becomes 0, and the highest bit alone where either side has 64 bits.
    """
    dtype = DTYPES[kind]
    info = np.iinfo(dtype)

    def convert(x: Array) -> Array:
        wide = x.astype(np.float64)
        low, high = wide <= float(info.min), wide >= float(info.max)  # of 64 bits, the latter is 2^63 or 2^64
        inside = np.where(low | high | np.isnan(wide), 0, np.trunc(wide)).astype(dtype)
        of_nan = 1 << (dtype.itemsize * 8 - 1) if 8 in (x.dtype.itemsize, dtype.itemsize) else 0
        nan = np.array(of_nan, f"u{dtype.itemsize}").view(dtype)[()]
        result = np.where(low, dtype.type(info.min), np.where(high, dtype.type(info.max), inside))
        return np.where(np.isnan(wide), nan, result)

    return convert


def saturate(x: Array) -> Array:
    """Return x within [0, 1], +0 for NaN and -0."""
    return np.where(x > 0, np.minimum(x, np.float32(1)), np.float32(0))


def _to(kind: str) -> Callable[[Array], Array]:
    return lambda x: x.astype(DTYPES[kind])


def table() -> Table:
    """Return all conversions by their full name."""
    found: Table = {}
    for source in INTEGERS:
        for result in INTEGERS:
            found[f"cvt.{result}.{source}"] = Operation((source,), result, _to(result))
    for integer in ("u32", "s32", "u64", "s64"):
        for real in ("f32", "f64"):
            found[f"cvt.rn.{real}.{integer}"] = Operation((integer,), real, _to(real))
            found[f"cvt.rzi.{integer}.{real}"] = Operation((real,), integer, to_integer(integer))
    found["cvt.f64.f32"] = Operation(("f32",), "f64", _to("f64"))
    found["cvt.rn.f32.f64"] = Operation(("f64",), "f32", lambda x: canonical(x.astype(np.float32)))
    found["cvt.f32.f16"] = Operation(("f16",), "f32", lambda x: canonical(x.view(np.float16).astype(np.float32)))
    found["cvt.f32.bf16"] = Operation(("bf16",), "f32", lambda x: canonical(bfloats(x)))
    found["cvt.sat.f32.f32"] = Operation(("f32",), "f32", saturate)
    found["cvt.rn.satfinite.e4m3x2.f32"] = Operation(("f32", "f32"), "b16", two_e4m3)
    return found
