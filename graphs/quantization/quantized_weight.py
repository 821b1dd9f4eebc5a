"""Description of a quantized weight for a rewrite, and the result of a rewrite."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Codes = str  # a code type by its NumPy or ml_dtypes name (``plugins.number_types``)
Shape = tuple[int, ...]

MIDDLE: Mapping[str, int] = {"uint8": 128, "uint4": 8}  # the code that means zero


@dataclass(frozen=True)
class Rounding:
    """Quantization of an input before a matmul: to ``codes`` times one calibrated ``scale``.

    Without a scale, every ``block`` along the last axis gets a power of two at run time (MX); an incomplete last block
    is padded with zeros.
    """

    codes: Codes
    scale: float | None = None
    block: int = 0


@dataclass(frozen=True)
class QuantizedWeight:
    """A weight stored as codes. Its values are the codes, minus the middle code of an unsigned type, times a scale.

    ``scale`` is the shape of its scales: ``()`` for one, or one for each of the leading dims (``[out]`` of a matrix,
    ``[E]`` or ``[E,J]`` of stacked experts). With a ``block`` they have as many dims as the weight, and the last counts
    blocks of that many columns; rows are padded with zeros to whole blocks. ``input`` is the quantization of the other
    factor; None leaves it unchanged. With ``powers``, scales are powers of two, stored as one byte each, exponent + 127
    (E8M0). ``gathered``: lookups, as of an embedding tied to the LM head, read the codes as well. ``packed`` names the
    format of ``QuantizedLinear`` in which a matrix is stored for this project's kernels, which quantize the other
    factor. ``blocks`` names that of a stack of routed experts as the checkpoint stores it.
    """

    codes: Codes
    scale: Shape = ()
    block: int = 0
    input: Rounding | None = None
    powers: bool = False
    gathered: bool = False
    packed: str = ""
    blocks: str = ""


@dataclass(frozen=True)
class WeightStream:
    """The source of an initializer in a quantized graph: the codes, or the scales, of a weight."""

    weight: str
    scales: bool


@dataclass(frozen=True)
class SharedInput:
    """Weights multiplied with the same tensor, which is quantized once: ``scale`` is the largest of their scales."""

    weights: tuple[str, ...]
    scale: float
    smallest: float


@dataclass(frozen=True)
class Quantization:
    """The result of a rewrite: weights ``done``, and for each one ``refused`` the reason.

    ``shared``: the inputs that several weights share. ``streams``: the initializers that hold codes and scales.
    """

    done: tuple[str, ...]
    refused: Mapping[str, str]
    shared: tuple[SharedInput, ...]
    streams: Mapping[str, WeightStream]
