"""Linears over codes of four or eight bits: ``com.microsoft.MatMulNBits``, which multiplies with them as they are."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from onnxscript.rewriter import MatchResult, RewriteRuleClassBase

from .codes import ACCURACY, blocks_of
from .contrib import CONTRIB


class NarrowLinear(RewriteRuleClassBase):
    """``MatMul(x, Transpose(DequantizeLinear(codes, scales, middle)))`` -> ``MatMulNBits(x, codes, scales)``.

    The codes stay where they lie in the file, as bytes; the middle is the zero point that the kernel takes by default.
    """

    def __init__(self) -> None:
        super().__init__(remove_nodes=False)  # two linears may share one weight

    def pattern(self, op: Any, x: Any, codes: Any, scales: Any, middle: Any) -> Any:
        weight = op.DequantizeLinear(codes, scales, middle, _allow_other_attributes=True, _outputs=["weight"])
        return op.MatMul(x, op.Transpose(weight, perm=[1, 0]))

    def check(self, _: Any, weight: ir.Value, codes: ir.Value, **__: Any) -> MatchResult:
        result = MatchResult()
        blocks = blocks_of(weight)
        if blocks.fault:
            return result.fail(blocks.fault, codes)
        if weight.shape is None or len(weight.shape) != 2:
            return result.fail("it is not a matrix", weight)
        if not _only_linears(weight):
            return result.fail("something that is no linear reads the weight as well", weight)
        return result

    def rewrite(self, op: Any, x: ir.Value, weight: ir.Value, codes: ir.Value, scales: ir.Value, **_: Any) -> Any:
        blocks = blocks_of(weight)
        blocks.as_bytes(split=True)
        return op.MatMulNBits(
            x,
            codes,
            scales,
            K=blocks.columns,
            N=int(codes.shape[0]),
            bits=blocks.bits,
            block_size=blocks.size,
            accuracy_level=ACCURACY,
            _domain=CONTRIB,
        )


def _only_linears(weight: ir.Value) -> bool:
    """Whether all that is done with it is what the pattern says: each of those readers is rewritten in its turn."""
    turned = [node.outputs[0] for node, _ in weight.uses()]
    return all(
        reader.op_type == "MatMul" and place == 1
        for value in turned
        for reader, place in (value.uses() if _is_turn(value) else [(value.producer(), 0)])
    )


def _is_turn(value: ir.Value) -> bool:
    node: Any = value.producer()
    return node.op_type == "Transpose" and list(node.attributes["perm"].as_ints()) == [1, 0]
