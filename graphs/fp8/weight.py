"""What a rewrite to FP8 is told of a weight, and what it says it did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

FP8 = "float8_e4m3fn"  # as ml_dtypes and the weight plan of a lowered graph call it

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Fp8Weight:
    """A weight whose E4M3 codes times ``scale`` are its values.

    ``scale`` is float32: one number, or one for each of the leading dims of the weight: ``[out]`` of a matrix, ``[E]``
    or ``[E,J]`` of stacked experts. ``input_scale`` times an E4M3 code is what the weight is multiplied with; None
    leaves that as it is.
    """

    scale: Array
    input_scale: float | None = None

    @classmethod
    def of(cls, scale: Array, input_scale: float | None = None) -> Fp8Weight:
        """With the fewest numbers that say the same."""
        while scale.ndim and np.all(scale == scale[..., :1]):
            scale = scale[..., 0]
        return cls(np.asarray(scale, np.float32), input_scale)


@dataclass(frozen=True)
class SharedInput:
    """Weights that are multiplied with the same tensor, rounded once: ``scale`` is the largest of theirs."""

    weights: tuple[str, ...]
    scale: float
    smallest: float


@dataclass(frozen=True)
class Narrowing:
    """``refused``: why a weight that was to become FP8 did not. ``shared``: the inputs that several weights share."""

    done: tuple[str, ...]
    refused: Mapping[str, str]
    shared: tuple[SharedInput, ...]
