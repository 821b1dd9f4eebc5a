"""Numbers to codes: the scale that a group of them needs, and each as the nearest code times it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from ...graphs.rounding.weight import MIDDLE, Codes
from ...graphs.targets.sources import Array

# The largest code, and the smallest: of eight bits as far from zero as the largest, so that no sign has more room.
FP16_MAX = 65504.0
LARGEST: Mapping[str, float] = {"float8_e4m3fn": 448.0, "int8": 127.0, "uint8": 127.0, "int4": 7.0, "uint4": 7.0}
SMALLEST: Mapping[str, float] = {name: -largest for name, largest in LARGEST.items()} | {"int4": -8.0, "uint4": -8.0}
_E8M0_BIAS = 127
_TYPES: Mapping[str, Any] = {
    "float8_e4m3fn": ml_dtypes.float8_e4m3fn, "int8": np.int8, "uint8": np.uint8, "int4": ml_dtypes.int4,
    "uint4": ml_dtypes.uint4,
}  # fmt: skip
# What the largest number of a block of four bits becomes: above 8 it is clipped, which often suits the others.
_TRIED = (6.5, 7.0, 7.5, 8.0, 8.5, 9.0, 9.5)
_AT_ONCE = 2**16  # numbers, so that they stay in the cache while every scale is tried


def scales_for(amax: Array, codes: Codes) -> Array:
    """What codes are multiplied by so that the largest of them means ``amax``; 1 where all numbers are (next to) zero.

    float32, of the shape of ``amax``.
    """
    return _usable((amax / LARGEST[codes]).astype(np.float32))


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
    found = [_least(rows[at : at + step], largest[at : at + step], codes) for at in range(0, len(rows), step)]
    return np.concatenate(found).reshape(amax.shape) if found else np.zeros(amax.shape, np.float32)


def _least(rows: Array, largest: Array, codes: Codes) -> Array:
    """Of ``largest`` over each of ``_TRIED``, the scale that moves a row least; the first of equals."""
    least = np.full(len(rows), np.inf, np.float32)
    best = _usable((largest / np.float32(8)).astype(np.float32))
    error = np.empty_like(rows)
    with np.errstate(over="ignore"):  # of a square: then nothing is better than what it started from
        for code in _TRIED:
            scales = _usable((largest / np.float32(code)).astype(np.float32))
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


def exponents(powers: Array) -> Array:
    """Powers of two as MX formats keep them (E8M0): uint8, the exponent + 127."""
    stored: Array = (np.frexp(powers)[1] + (_E8M0_BIAS - 1)).astype(np.uint8)
    return stored


def rounded(values: Array, scales: Array, codes: Codes) -> Array:
    """``values / scales`` to the nearest code, ties to even; beyond the last, the last. Shapes broadcast."""
    if codes == "float8_e4m3fn":
        import torch  # five times as fast as ml_dtypes

        clipped = torch.from_numpy(np.clip(values / scales, SMALLEST[codes], LARGEST[codes])).to(torch.float8_e4m3fn)
        narrow: Array = clipped.view(torch.uint8).numpy().view(ml_dtypes.float8_e4m3fn)
        return narrow
    whole = _whole(values, scales, codes) + MIDDLE.get(codes, 0)
    result: Array = whole.astype(np.int16).astype(_TYPES[codes])
    return result


def values_of(codes: Array, scales: Array, kind: Codes) -> Array:
    """What the codes mean, float32."""
    numbers: Array = (codes.astype(np.float32) - np.float32(MIDDLE.get(kind, 0))) * scales
    return numbers


def _whole(values: Array, scales: Array, codes: Codes) -> Array:
    """The codes as numbers around zero."""
    whole: Array = np.clip(np.rint(values / scales), SMALLEST[codes], LARGEST[codes])
    return whole


def _usable(scales: Array) -> Array:
    """1 in the place of those that are too small to divide by."""
    return np.where(abs(scales) >= np.finfo(np.float32).tiny, scales, np.float32(1)).astype(np.float32)


def largest_of(wide: str) -> float:
    """The largest number that values have room for where they are wide again."""
    return FP16_MAX if wide == "fp16" else float(np.finfo(np.float32).max)


def unusable(scales: Array, codes: Codes, wide: str) -> str:
    """What is wrong with scales whose values would overflow in ``wide``, or vanish; empty if nothing is."""
    if float(np.max(scales)) * LARGEST[codes] > largest_of(wide):
        return f"it is {np.max(scales):.3g}, and the largest code times that is beyond {wide}"
    tiny = np.finfo(np.float32).tiny
    return f"it is {np.min(scales):.3g}, below the normal numbers of float32" if np.min(scales) < tiny else ""
