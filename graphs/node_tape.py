"""A tape that records nodes written as calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx_ir.tape import Tape


class Nodes(Tape):
    """``op.Add(a, b)`` creates a node, stores it in ``op.nodes``, and returns its only output."""

    def __getattr__(self, op_type: str) -> Callable[..., ir.Value]:
        return lambda *inputs, **attributes: self.op(op_type, inputs, attributes)

    def constant(self, value: Any, dtype: ir.DataType = ir.DataType.INT64) -> ir.Value:
        """Create a constant of exactly this type."""
        return self.Constant(value=ir.tensor(np.asarray(value).astype(dtype.numpy())))
