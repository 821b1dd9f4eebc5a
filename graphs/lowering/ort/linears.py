"""Linears for ONNX Runtime, on weights as stored: ``FusedMatMul`` for wide ones, ``MatMulNBits`` for codes.

Both use the checkpoint's layout: wide weights are pre-packed at load like any constant; codes of four or eight bits are
used directly. ``GatherBlockQuantized`` looks up embedding rows in the same bytes.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir
from onnxscript.rewriter import MatchResult, RewriteRuleClassBase

from ...names import CONTRIB
from ...quantization.quantized_weight import MIDDLE
from ..shared_passes import PARTS_METADATA

ACCURACY = 4  # the kernel may quantize the other factor to int8, block by block, which is the fast mode
_SMALLEST_BLOCK = 16


class FusedMatMulFusion(RewriteRuleClassBase):
    """``MatMul(x, Transpose(weight))`` -> ``FusedMatMul(x, weight, transB=1)``: no transposed copy of the weight."""

    def __init__(self) -> None:
        super().__init__(remove_nodes=False)  # two linears may share one weight

    def pattern(self, op: Any, x: Any, weight: Any) -> Any:
        return op.MatMul(x, op.Transpose(weight, perm=[1, 0]))

    def check(self, _: Any, weight: ir.Value, **__: Any) -> MatchResult:
        result = MatchResult()
        return result if weight.is_initializer() else result.fail("the right side is computed, not a weight", weight)

    def rewrite(self, op: Any, x: ir.Value, weight: ir.Value) -> Any:
        return op.FusedMatMul(x, weight, transB=1, _domain=CONTRIB)


class MatMulNBitsFusion(RewriteRuleClassBase):
    """``MatMul(x, Transpose(DequantizeLinear(codes, scales, middle)))`` -> ``MatMulNBits(x, codes, scales)``.

    The codes keep their bytes in the file; the middle is the kernel's default zero point.
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
            return result.fail("the weight is not a matrix", weight)
        if not _only_linears(weight):
            return result.fail("a node other than a linear reads the weight as well", weight)
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


class GatherBlockQuantizedFusion(RewriteRuleClassBase):
    """``Gather(DequantizeLinear(codes, scales, middle), ids)`` -> ``GatherBlockQuantized(codes, ids, scales)``.

    The kernel needs the codes of a row in one dimension, while ``MatMulNBits`` has a separate one for blocks: a tied
    matrix has two initializers with the same bytes of the file.
    """

    def __init__(self) -> None:
        super().__init__(remove_nodes=False)  # the LM head still reads them

    def pattern(self, op: Any, ids: Any, codes: Any, scales: Any, middle: Any) -> Any:
        weight = op.DequantizeLinear(codes, scales, middle, _allow_other_attributes=True, _outputs=["weight"])
        return op.Gather(weight, ids, _allow_other_attributes=True, _outputs=["rows"])

    def check(self, _: Any, weight: ir.Value, rows: ir.Value, codes: ir.Value, **__: Any) -> MatchResult:
        result = MatchResult()
        if fault := blocks_of(weight).fault:
            return result.fail(fault, codes)
        if weight.shape is None or len(weight.shape) != 2 or not _is_lookup(rows.producer()):
            return result.fail("the node does not look up rows of a matrix", weight)
        return result

    def rewrite(self, op: Any, ids: ir.Value, weight: ir.Value, scales: ir.Value, **_: Any) -> Any:
        blocks = blocks_of(weight)
        return op.GatherBlockQuantized(
            blocks.in_rows(), ids, scales,
            gather_axis=0, quantize_axis=1, block_size=blocks.size, bits=blocks.bits, _domain=CONTRIB,
        )  # fmt: skip


def _only_linears(weight: ir.Value) -> bool:
    """Return True if all readers match the patterns, each of which will be rewritten."""
    transposed = [node.outputs[0] for node, position in weight.uses() if position or not _is_lookup(node)]
    return all(
        reader.op_type == "MatMul" and position == 1
        for value in transposed
        for reader, position in (value.uses() if _is_turn(value) else [(value.producer(), 0)])
    )


def _is_lookup(node: ir.Node | None) -> bool:
    return node is not None and node.op_type == "Gather" and node.attributes.get_int("axis", 0) == 0


def _is_turn(value: ir.Value) -> bool:
    node: Any = value.producer()
    return node.op_type == "Transpose" and list(node.attributes["perm"].as_ints()) == [1, 0]


@dataclass(frozen=True)
class Blocks:
    """The codes behind a ``DequantizeLinear``.

    ``fault`` is the reason why the kernels do not support the codes; empty if they do.
    """

    codes: ir.Value
    scales: ir.Value
    bits: int = 0
    size: int = 0
    columns: int = 0
    fault: str = ""

    def as_bytes(self, *, split: bool) -> None:
        """Declare the initializer as ``uint8 [.., columns * bits / 8]``, or ``[.., blocks, bytes]`` if ``split``.

        The bytes are the same: four-bit codes are already stored two per byte, low half first.
        """
        scales = [int(dim) for dim in self.scales.shape or ()]
        last = [scales[-1], self.size * self.bits // 8] if split else [self.columns * self.bits // 8]
        shape, name = ir.Shape([*scales[:-1], *last]), self.codes.name
        self.codes.shape, self.codes.type = shape, ir.TensorType(ir.DataType.UINT8)
        self.codes.const_value = ir.ExternalTensor("weights", None, None, ir.DataType.UINT8, shape=shape, name=name)

    def in_rows(self) -> ir.Value:
        """Return a separate initializer with the same bytes as ``uint8 [rows, columns * bits / 8]``."""
        graph, name = self.codes.graph, f"{self.codes.name}.rows"
        if graph is None:
            raise ValueError(f"{self.codes.name} is not in a graph")
        if name not in graph.initializers:
            shape = ir.Shape([int(self.scales.shape[0]), self.columns * self.bits // 8])
            rows = ir.Value(name=name, shape=shape, type=ir.TensorType(ir.DataType.UINT8))
            rows.const_value = ir.ExternalTensor("weights", None, None, ir.DataType.UINT8, shape=shape, name=name)
            rows.metadata_props[PARTS_METADATA] = json.dumps([self.codes.name])
            graph.register_initializer(rows)
        return graph.initializers[name]


def blocks_of(weight: ir.Value) -> Blocks:
    """Return the codes behind a weight that ``DequantizeLinear(codes, scales, middle)`` computes."""
    node: Any = weight.producer()
    codes, scales, middle = node.inputs
    described = _described(weight, codes, scales, middle)
    return described if isinstance(described, Blocks) else Blocks(codes, scales, fault=described)


def _described(weight: ir.Value, codes: ir.Value, scales: ir.Value, middle: ir.Value) -> Blocks | str:
    """Return the settings for the kernels, or why they do not support the codes."""
    if not (codes.is_initializer() and scales.is_initializer()) or weight.shape is None:
        return "codes or scales are computed, not stored"
    attributes: Any = weight.producer()
    size, axis = (attributes.attributes.get_int(name, 0) for name in ("block_size", "axis"))
    shape = [int(dim) for dim in weight.shape]
    if not size or axis % len(shape) != len(shape) - 1:
        return "the scales are not one per block of columns"
    if size < _SMALLEST_BLOCK or size & (size - 1) or shape[-1] % size:
        need = f"a power of two of at least {_SMALLEST_BLOCK} that divides the number of columns"
        return f"the block size is {size} for {shape[-1]} columns, but must be {need}"
    if scales.dtype != ir.DataType.FLOAT:
        return "the scales are not float32"
    bits = _bits(codes, shape)
    if bits is None or _constant(middle) != MIDDLE[f"uint{bits}"]:
        return "the codes are not 4-bit or 8-bit integers with a zero point in the middle"
    return Blocks(codes, scales, bits, size, shape[-1])


def _bits(codes: ir.Value, shape: list[int]) -> int | None:
    """Return the bits of codes, whether still in their own type or declared as bytes."""
    if codes.shape is None or codes.dtype not in (ir.DataType.UINT4, ir.DataType.UINT8):
        return None
    is_unpacked = math.prod(int(dim) for dim in codes.shape) == math.prod(shape)
    return 8 if is_unpacked and codes.dtype == ir.DataType.UINT8 else 4


def _constant(value: ir.Value) -> int | None:
    """Return the value of a constant tensor with equal elements."""
    node = value.producer()
    if node is not None and node.op_type == "Cast" and node.inputs[0] is not None:
        node = node.inputs[0].producer()
    if node is None or node.op_type != "ConstantOfShape" or "value" not in node.attributes:
        return None
    return int(node.attributes["value"].as_tensor().numpy()[0])
