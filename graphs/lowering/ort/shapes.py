"""Shape arithmetic that rewrites leave behind, and what nobody needs to compute."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from onnxscript.rewriter import MatchResult, RewriteRuleClassBase


class WidthOfTheInput(RewriteRuleClassBase):
    """The width of anything as wide as the window is the window's: what only carried a width is not computed."""

    def __init__(self, inputs: list[ir.Value]) -> None:
        super().__init__()
        self.inputs = inputs

    def _source(self, x: ir.Value) -> ir.Value | None:
        if x.shape is None or len(x.shape) < 2 or x in self.inputs:
            return None
        same = (v for v in self.inputs if v.shape is not None and len(v.shape) > 1 and v.shape[1] == x.shape[1])
        return next(same, None)

    def pattern(self, op: Any, x: Any) -> Any:
        return op.Shape(x, start=1, end=2)

    def check(self, _: Any, x: ir.Value) -> MatchResult:
        result = MatchResult()
        return result if self._source(x) is not None else result.fail("no input is as wide", x)

    def rewrite(self, op: Any, x: ir.Value) -> Any:
        return op.Shape(self._source(x), start=1, end=2)


class CollapseReshape(RewriteRuleClassBase):
    """``Reshape(Reshape(x))`` -> the outer one alone: rewrites leave such pairs where layouts meet."""

    def pattern(self, op: Any, x: Any, inner: Any, outer: Any) -> Any:
        return op.Reshape(op.Reshape(x, inner), outer)

    def check(self, _: Any, outer: ir.Value, inner: ir.Value, **__: Any) -> MatchResult:
        result = MatchResult()
        constant = ir.convenience.get_const_tensor(outer)
        if constant is not None and 0 in constant.numpy()[2:]:
            return result.fail("the outer shape copies a dimension that the inner one made", outer)
        return result

    def rewrite(self, op: Any, x: ir.Value, outer: ir.Value, **_: Any) -> Any:
        return op.Reshape(x, outer)


class SameShape(RewriteRuleClassBase):
    """A ``Reshape`` to the shape its input has already: nothing. ONNX Runtime drops an Identity when it loads."""

    def pattern(self, op: Any, x: Any, shape: Any) -> Any:
        return op.Reshape(x, shape, _outputs=["out"])

    def check(self, _: Any, x: ir.Value, shape: ir.Value, out: ir.Value) -> MatchResult:
        result = MatchResult()
        if not x.shape:
            return result.fail("the input is a scalar, or of unknown shape", x)
        constant = ir.convenience.get_const_tensor(shape)
        kept = constant is not None and constant.numpy().tolist() == [0] * (len(x.shape) - 1) + [-1]
        if not kept and (out.shape is None or list(x.shape) != list(out.shape)):
            return result.fail("the shapes differ, or one is unknown", out)
        return result

    def rewrite(self, op: Any, x: ir.Value, **_: Any) -> Any:
        return op.Identity(x)
