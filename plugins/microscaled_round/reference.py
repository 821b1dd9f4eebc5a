"""The oracle of ``MicroscaledRound``, and the rule for the scales of MX blocks, which weights follow as well."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

BLOCK = 32
_LARGEST = 8, 0.875  # 448, the largest number of E4M3, is 0.875 * 2 ** (8 + 1)
_SMALLEST_NORMAL, _MANTISSA = -6, 3  # of E4M3: exponent, bits
_EXPONENTS = -127, 127  # of E8M0


def powers_of_two(amax: Array) -> Array:
    """The scale of a block whose largest number is ``amax``: the least power of two with amax / scale <= 448.

    float32, of the shape of ``amax``, from 2**-127 up. So no number saturates, where the example in OCP Microscaling
    Formats 1.0, 6.3 rounds the exponent down. Source: cuDNN's block scale quantize (scale = round_up(amax / vmax)), the
    conversion of CUDA's ``__nv_fp8_e8m0``, and ModelOpt's ``compute_e8m0``, all of NVIDIA.
    """
    mantissa, exponent = np.frexp(np.asarray(amax, np.float32))
    power = exponent - 1 - _LARGEST[0] + (mantissa > _LARGEST[1])
    power = np.where(mantissa > 0, power, _EXPONENTS[0])
    scale: Array = np.ldexp(np.float32(1), np.clip(power, *_EXPONENTS))
    return scale


def microscaled_round(x: Array) -> tuple[Array]:
    """y, of x's shape and dtype; the inputs are those of the op's spec."""
    blocks = x.astype(np.float32).reshape(*x.shape[:-1], -1, BLOCK)
    scale = powers_of_two(np.abs(blocks).max(axis=-1, keepdims=True))
    rounded = _to_e4m3(blocks / scale) * scale
    return (rounded.reshape(x.shape).astype(x.dtype),)


def _to_e4m3(values: Array) -> Array:
    """float32 of at most 448 to the nearest number of E4M3, ties to even."""
    exponent = np.maximum(np.frexp(values)[1] - 1, _SMALLEST_NORMAL)
    step = np.ldexp(np.float32(1), exponent - _MANTISSA)
    rounded: Array = np.rint(values / step) * step
    return rounded
