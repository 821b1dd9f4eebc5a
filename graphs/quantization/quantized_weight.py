"""A quantized weight as a rewrite is told of it, and the account of what a rewrite did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Codes = str  # a type of codes as NumPy or ml_dtypes calls it (``plugins.number_types``)
Shape = tuple[int, ...]

MIDDLE: Mapping[str, int] = {"uint8": 128, "uint4": 8}  # the code that means zero


@dataclass(frozen=True)
class Rounding:
    """How an input is rounded before the product: to ``codes`` times one calibrated ``scale``.

    Without a scale every ``block`` of neighbours along the last axis gets a power of two of its own at run time (MX),
    after zeros were put behind a last one that is not whole.
    """

    codes: Codes
    scale: float | None = None
    block: int = 0


@dataclass(frozen=True)
class QuantizedWeight:
    """A weight that is stored as codes; they, less the middle code of an unsigned type, times a scale are its values.

    ``scale`` is the shape of its scales: ``()`` for one, or one for each of the leading dims (``[out]`` of a matrix,
    ``[E]`` or ``[E,J]`` of stacked experts). With a ``block`` they have as many dims as the weight, and the last counts
    blocks of so many columns; a row that ends within one is stored with zeros up to its end. ``input`` says how what it
    is multiplied with is rounded; None leaves that as it is. With ``powers`` the scales are powers of two, kept as
    their exponents + 127 (E8M0), a byte each. ``gathered``: rows that are looked up in it, as those of an embedding
    that is the head's matrix too, are read from the codes as well. ``packed`` names the format of ``QuantizedLinear``
    in which a matrix is stored for kernels of ours, which round what they multiply with.
    """

    codes: Codes
    scale: Shape = ()
    block: int = 0
    input: Rounding | None = None
    powers: bool = False
    gathered: bool = False
    packed: str = ""


@dataclass(frozen=True)
class WeightStream:
    """The values that an initializer of a quantized graph takes: the codes, or the scales, of a weight."""

    weight: str
    scales: bool


@dataclass(frozen=True)
class SharedInput:
    """Weights that are multiplied with the same tensor, rounded once: ``scale`` is the largest of theirs."""

    weights: tuple[str, ...]
    scale: float
    smallest: float


@dataclass(frozen=True)
class Quantization:
    """The account of a rewrite: the weights ``done``, and in ``refused`` why others that were to be quantized were not.

    ``shared``: the inputs that several weights share. ``streams``: the initializers that hold codes and scales.
    """

    done: tuple[str, ...]
    refused: Mapping[str, str]
    shared: tuple[SharedInput, ...]
    streams: Mapping[str, WeightStream]
