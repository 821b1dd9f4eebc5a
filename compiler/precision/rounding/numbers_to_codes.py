"""Quantize values: find a scale for each group, and the nearest code for each value."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ....graphs.quantization.quantized_weight import MIDDLE, Codes
from ....graphs.targets.checkpoint_pieces import Array
from ....plugins.number_formats import NUMBER_FORMATS
from ....plugins.number_types import (
    BY_NUMPY,
    E4M3,
    INT4,
    INT8,
    UINT4,
    UINT8,
    scales_of,
    to_e4m3,
    usable,
)

# The largest and the smallest code; eight-bit types use a symmetric range.
_KINDS = (E4M3, INT8, UINT8, INT4, UINT4)
LARGEST: Mapping[str, float] = {kind.numpy: kind.largest - MIDDLE.get(kind.numpy, 0) for kind in _KINDS}
SMALLEST: Mapping[str, float] = {
    kind.numpy: -LARGEST[kind.numpy] if kind.bits == 8 else kind.smallest - MIDDLE.get(kind.numpy, 0) for kind in _KINDS
}
_E4M3_VALUES: Array = np.arange(256, dtype=np.uint8).view(E4M3.dtype).astype(np.float32)
_FEW_BITS = 4
# Candidate codes for the largest value of a four-bit block: beyond 8 it is clipped, which often suits the others.
_FACTORS = (6.5, 7.0, 7.5, 8.0, 8.5, 9.0, 9.5)
_PLAIN = _FACTORS.index(8.0)
_AT_ONCE = 2**18  # values
_SHORT = 64


def scales_for(amax: Array, codes: Codes, largest: int = 0) -> Array:
    """Return the scales with which the largest code represents ``amax``; 1 for groups of (nearly) zeros.

    float32, in the shape of ``amax``. ``largest`` overrides the largest code in use; 0 means the type's own.
    """
    return usable(scales_of(amax, largest or LARGEST[codes]))


def magnitudes(groups: Array) -> Array:
    """Return the largest |x| of every group, ``[.., columns]`` -> ``[..]``.

    Short groups are reduced by halves: NumPy's maximum over 32 values at a time takes as long as rounding them.
    """
    if not 1 < groups.shape[-1] <= _SHORT:
        found: Array = np.maximum(groups.max(axis=-1), -groups.min(axis=-1))
        return found
    largest = abs(groups)
    while largest.shape[-1] % 2 == 0:
        largest = np.maximum(largest[..., 0::2], largest[..., 1::2])
    return np.asarray(largest.max(axis=-1))


def block_scales(blocks: Array, codes: Codes, largest_code: int = 0) -> Array:
    """Return the scale of every block, ``[.., columns]`` -> ``[..]`` float32; 1 for blocks of (nearly) zeros.

    Four-bit types use the candidate scale with the least sum of squared errors. A negative scale puts the largest value
    on the side with the extra code. That applies to ONNX Runtime's codes (``uint4``); TensorRT requires positive
    scales, which ``int4`` gets. The result depends on the block alone.
    """
    amax = magnitudes(blocks)
    if BY_NUMPY[codes].bits != _FEW_BITS:
        return scales_for(amax, codes, largest_code)
    rows = blocks.reshape(-1, blocks.shape[-1])
    largest = amax.reshape(-1)
    if codes in MIDDLE:
        largest = -rows[np.arange(len(rows)), abs(rows).argmax(axis=-1)]
    step = max(1, _AT_ONCE // rows.shape[-1])
    scales = [_least(rows[at : at + step], largest[at : at + step], codes) for at in range(0, len(rows), step)]
    return np.concatenate(scales).reshape(amax.shape) if scales else np.zeros(amax.shape, np.float32)


def _least(rows: Array, largest: Array, codes: Codes) -> Array:
    """Return the scale with the least error of a row among ``largest`` / ``_FACTORS``; the first one if tied."""
    scales = usable((largest / np.array(_FACTORS, np.float32)[:, None]).astype(np.float32))
    error, squared = np.empty_like(rows), np.empty(scales.shape, np.float32)
    with np.errstate(over="ignore"):  # a square may overflow; then another candidate wins
        for each, of_each in zip(scales, squared, strict=True):
            np.divide(rows, each[:, None], out=error)
            np.rint(error, out=error)
            np.clip(error, SMALLEST[codes], LARGEST[codes], out=error)
            error *= each[:, None]
            error -= rows
            np.einsum("ij,ij->i", error, error, out=of_each)
    squared[~np.isfinite(squared)] = np.inf
    best = squared.argmin(axis=0)
    found: Array = scales[best, np.arange(len(rows))]
    return np.where(np.isinf(squared.min(axis=0)), scales[_PLAIN], found)


def rounded(values: Array, scales: Array, codes: Codes, largest: int = 0) -> Array:
    """Return ``values / scales`` as the nearest code, ties to even, clipped to the range. Shapes broadcast.

    ``largest`` makes the range symmetric, up to that code.
    """
    if codes == "float8_e4m3fn":
        return to_e4m3(values / scales).view(E4M3.dtype)
    quotients = np.divide(values, scales)
    np.clip(np.rint(quotients, out=quotients), -largest or SMALLEST[codes], largest or LARGEST[codes], out=quotients)
    quotients += np.float32(MIDDLE.get(codes, 0))
    result: Array = quotients.astype(np.int16).astype(BY_NUMPY[codes].dtype)
    return result


def values_of(codes: Array, scales: Array, kind: Codes) -> Array:
    """Dequantize to float32. E4M3 uses a lookup table, three times as fast as converting."""
    if kind == "float8_e4m3fn":
        looked_up: Array = _E4M3_VALUES.take(codes.view(np.uint8), mode="wrap")
        looked_up *= scales
        return looked_up
    numbers: Array = codes.astype(np.float32)
    numbers -= np.float32(MIDDLE.get(kind, 0))
    numbers *= scales
    return numbers


def largest_of(wide: str) -> float:
    """Return the largest value of a wide type."""
    return NUMBER_FORMATS[wide].number_type.largest


def unusable(scales: Array, codes: Codes, wide: str) -> str:
    """Describe why scales cannot be used: their values overflow ``wide`` or vanish; empty if they can."""
    if float(np.max(scales)) * LARGEST[codes] > largest_of(wide):
        return f"the value {np.max(scales):.3g} times the largest code overflows {wide}"
    tiny = np.finfo(np.float32).tiny
    return f"the value {np.min(scales):.3g} is below the normal numbers of float32" if np.min(scales) < tiny else ""
