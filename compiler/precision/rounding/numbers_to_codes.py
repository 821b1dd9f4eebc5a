"""Numbers to codes: the scale that a group of them needs, and each as the nearest code times it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ....graphs.quantization.quantized_weight import MIDDLE, Codes
from ....graphs.targets.checkpoint_pieces import Array
from ....plugins.number_types import (
    BY_NUMPY,
    E4M3,
    FLOAT16,
    FLOAT32,
    INT4,
    INT8,
    UINT4,
    UINT8,
    scales_of,
    to_e4m3,
    usable,
)

# The largest code, and the smallest: of eight bits as far from zero as the largest, so that no sign has more room.
_KINDS = (E4M3, INT8, UINT8, INT4, UINT4)
LARGEST: Mapping[str, float] = {kind.numpy: kind.largest - MIDDLE.get(kind.numpy, 0) for kind in _KINDS}
SMALLEST: Mapping[str, float] = {
    kind.numpy: -LARGEST[kind.numpy] if kind.bits == 8 else kind.smallest - MIDDLE.get(kind.numpy, 0) for kind in _KINDS
}
_E4M3_VALUES: Array = np.arange(256, dtype=np.uint8).view(E4M3.dtype).astype(np.float32)
# What the largest number of a block of four bits becomes: above 8 it is clipped, which often suits the others.
_TRIED = (6.5, 7.0, 7.5, 8.0, 8.5, 9.0, 9.5)
_AT_ONCE = 2**16  # numbers, so that they stay in the cache while every scale is tried


def scales_for(amax: Array, codes: Codes) -> Array:
    """The scales of codes, such that the largest of them means ``amax``; 1 where all numbers are (next to) zero.

    float32, of the shape of ``amax``.
    """
    return usable(scales_of(amax, LARGEST[codes]))


def block_scales(blocks: Array, codes: Codes) -> Array:
    """The scale of every block, ``[.., columns]`` -> ``[..]`` float32; 1 where all numbers are (next to) zero.

    Of four bits: of a few scales, the one with the least sum of squared errors. The largest number of a block is put on
    the side that has one code more, by a negative scale if it must be. That is for the codes of ONNX Runtime
    (``uint4``); TensorRT asks for positive scales, which those of ``int4`` are. Nothing but the block decides.
    """
    amax = abs(blocks).max(axis=-1)
    if codes not in ("int4", "uint4"):
        return scales_for(amax, codes)
    rows = blocks.reshape(-1, blocks.shape[-1])
    largest = amax.reshape(-1)
    if codes == "uint4":
        largest = -rows[np.arange(len(rows)), abs(rows).argmax(axis=-1)]
    step = max(1, _AT_ONCE // rows.shape[-1])
    scales = [_least(rows[at : at + step], largest[at : at + step], codes) for at in range(0, len(rows), step)]
    return np.concatenate(scales).reshape(amax.shape) if scales else np.zeros(amax.shape, np.float32)


def _least(rows: Array, largest: Array, codes: Codes) -> Array:
    """The scale that moves a row least, of ``largest`` over each of ``_TRIED``; the first of equals."""
    least = np.full(len(rows), np.inf, np.float32)
    best = usable((largest / np.float32(8)).astype(np.float32))
    error = np.empty_like(rows)
    with np.errstate(over="ignore"):  # of a square: then nothing is better than what it started from
        for code in _TRIED:
            scales = usable((largest / np.float32(code)).astype(np.float32))
            of_row = scales[:, None]
            np.divide(rows, of_row, out=error)
            np.rint(error, out=error)
            np.clip(error, SMALLEST[codes], LARGEST[codes], out=error)
            error *= of_row
            error -= rows
            squared = np.einsum("ij,ij->i", error, error)
            better = squared < least
            least[better], best[better] = squared[better], scales[better]
    return best


def rounded(values: Array, scales: Array, codes: Codes) -> Array:
    """``values / scales`` to the nearest code, ties to even; beyond the last, the last. Shapes broadcast."""
    if codes == "float8_e4m3fn":
        return to_e4m3(values / scales).view(E4M3.dtype)
    whole = _whole(values, scales, codes) + MIDDLE.get(codes, 0)
    result: Array = whole.astype(np.int16).astype(BY_NUMPY[codes].dtype)
    return result


def values_of(codes: Array, scales: Array, kind: Codes) -> Array:
    """The values of codes, float32. Those of E4M3 are looked up: three times as fast as to convert them."""
    if kind == "float8_e4m3fn":
        looked_up: Array = _E4M3_VALUES.take(codes.view(np.uint8))
        looked_up *= scales
        return looked_up
    numbers: Array = (codes.astype(np.float32) - np.float32(MIDDLE.get(kind, 0))) * scales
    return numbers


def _whole(values: Array, scales: Array, codes: Codes) -> Array:
    """The codes as numbers around zero."""
    whole: Array = np.clip(np.rint(values / scales), SMALLEST[codes], LARGEST[codes])
    return whole


def largest_of(wide: str) -> float:
    """The largest number that values have room for where they are wide again."""
    return (FLOAT16 if wide == "fp16" else FLOAT32).largest


def unusable(scales: Array, codes: Codes, wide: str) -> str:
    """What is wrong with scales whose values would overflow in ``wide``, or vanish; empty if nothing is."""
    if float(np.max(scales)) * LARGEST[codes] > largest_of(wide):
        return f"it is {np.max(scales):.3g}, and the largest code times that is beyond {wide}"
    tiny = np.finfo(np.float32).tiny
    return f"it is {np.min(scales):.3g}, below the normal numbers of float32" if np.min(scales) < tiny else ""
