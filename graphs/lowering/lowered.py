"""A lowered graph and the plan of the weights it still needs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx_ir as ir


BITS = {
    "float32": 32, "float16": 16, "bfloat16": 16, "float8_e4m3fn": 8, "int8": 8, "uint8": 8, "int4": 4, "uint4": 4,
    "int64": 64, "bool": 8,
}  # fmt: skip


@dataclass(frozen=True)
class Weight:
    """One initializer to be streamed: checkpoint tensors ``parts`` stacked along axis 0, stored as ``dtype``."""

    name: str
    parts: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str

    @property
    def bytes(self) -> int:
        """Size in the external-data file."""
        return -(-math.prod(self.shape) * BITS[self.dtype] // 8)


@dataclass(frozen=True)
class Lowered:
    """``model`` runs on its backend once ``weights`` are attached (``graphs.weights.attach``)."""

    model: ir.Model
    weights: tuple[Weight, ...]

    @property
    def total_bytes(self) -> int:
        """Bytes of weights to stream."""
        return sum(w.bytes for w in self.weights)
