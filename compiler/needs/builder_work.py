"""What the process that builds a plan takes, worked out without the packages that trace."""

from __future__ import annotations

import math
from dataclasses import dataclass

from . import measured

_MEASURED = "tensorrt-rtx"


@dataclass(frozen=True)
class BuilderWork:
    """The process in which ``product`` builds a plan: bytes at its peak, about, and without which it was killed.

    ``least_bytes`` and ``seconds`` are 0 of a product that was never measured.
    """

    product: str
    bytes: int
    least_bytes: int
    seconds: float

    @classmethod
    def of(cls, product: str, weight_bytes: int, layers: int) -> BuilderWork:
        """Work it out from the bytes of a plan's weights, and its layers."""
        known = product == _MEASURED
        return cls(
            product=product,
            bytes=math.ceil(measured.BUILDER_PEAK * weight_bytes),
            least_bytes=int(measured.BUILDER_LEAST * weight_bytes) if known else 0,
            seconds=measured.BUILD_LAYER * layers + measured.BUILD_BYTE * weight_bytes if known else 0.0,
        )
