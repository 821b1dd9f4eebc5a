"""FP8 in a semantic graph: weights that stay in E4M3 as the checkpoint has them, and inputs that are rounded to it.

Everything is explicit, in QuantizeLinear and DequantizeLinear, before a lowering sees the graph. ``matmuls`` reads back
from the lowered graph what became of it.
"""

from __future__ import annotations

from .matmuls import Matmul, matmuls
from .rewrite import narrow
from .weight import FP8, Fp8Weight, Narrowing, SharedInput

__all__ = ["FP8", "Fp8Weight", "Matmul", "Narrowing", "SharedInput", "matmuls", "narrow"]
