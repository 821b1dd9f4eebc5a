"""A lowered graph and the plan of the weights that it still needs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...plugins.number_types import BY_NUMPY

if TYPE_CHECKING:
    import onnx_ir as ir


@dataclass(frozen=True)
class GraphWeight:
    """An initializer to stream: checkpoint tensors ``parts`` stacked along axis 0, stored as ``dtype``.

    Initializers with equal parts share the same bytes, in different shapes.
    """

    name: str
    parts: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str

    @property
    def bytes(self) -> int:
        """The size in the external-data file, in bytes."""
        return BY_NUMPY[self.dtype].bytes(math.prod(self.shape))


@dataclass(frozen=True)
class Lowered:
    """A lowered graph, which runs on its backend once ``weights`` are attached (``graphs.stream_weights.attach``)."""

    model: ir.Model
    weights: tuple[GraphWeight, ...]

    @property
    def total_bytes(self) -> int:
        """The bytes of weights to stream."""
        return sum({weight.parts: weight.bytes for weight in self.weights}.values())
