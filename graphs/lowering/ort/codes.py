"""Weights as codes with one scale for every block of columns, as ONNX Runtime's kernels read them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from ...rounding.weight import MIDDLE

ACCURACY = 4  # the kernel may round what it multiplies with to int8, block by block: the form that is fast
_SMALLEST_BLOCK = 16


@dataclass(frozen=True)
class Blocks:
    """The codes behind a ``DequantizeLinear``. ``fault`` says why the kernels do not take them; empty if they do."""

    codes: ir.Value
    scales: ir.Value
    bits: int = 0
    size: int = 0
    columns: int = 0
    fault: str = ""

    def as_bytes(self, *, split: bool) -> None:
        """Describe the initializer as ``uint8 [.., columns * bits / 8]``, or ``[.., blocks, bytes]`` if ``split``.

        The bytes are the same: codes of four bits lie two to a byte already, low half first.
        """
        scales = [int(dim) for dim in self.scales.shape or ()]
        last = [scales[-1], self.size * self.bits // 8] if split else [self.columns * self.bits // 8]
        shape, name = ir.Shape([*scales[:-1], *last]), self.codes.name
        self.codes.shape, self.codes.type = shape, ir.TensorType(ir.DataType.UINT8)
        self.codes.const_value = ir.ExternalTensor("weights", None, None, ir.DataType.UINT8, shape=shape, name=name)


def blocks_of(weight: ir.Value) -> Blocks:
    """Of a weight that ``DequantizeLinear(codes, scales, middle)`` gives."""
    node: Any = weight.producer()
    codes, scales, middle = node.inputs
    found = _described(weight, codes, scales, middle)
    return found if isinstance(found, Blocks) else Blocks(codes, scales, fault=found)


def _described(weight: ir.Value, codes: ir.Value, scales: ir.Value, middle: ir.Value) -> Blocks | str:
    """What the kernels are told, or why they do not take it."""
    if not (codes.is_initializer() and scales.is_initializer()) or weight.shape is None:
        return "codes or scales are computed, not stored"
    attributes: Any = weight.producer()
    size, axis = (attributes.attributes.get_int(name, 0) for name in ("block_size", "axis"))
    shape = [int(dim) for dim in weight.shape]
    if not size or axis % len(shape) != len(shape) - 1:
        return "there is no scale for every block of columns"
    if size < _SMALLEST_BLOCK or size & (size - 1) or shape[-1] % size:
        return f"blocks of {size} of {shape[-1]} columns: a power of two from {_SMALLEST_BLOCK} on must divide them"
    if scales.dtype != ir.DataType.FLOAT:
        return "the scales are not float32"
    bits = _bits(codes, shape)
    if bits is None or _constant(middle) != MIDDLE[f"uint{bits}"]:
        return "the codes are not four or eight bits around their middle"
    return Blocks(codes, scales, bits, size, shape[-1])


def _bits(codes: ir.Value, shape: list[int]) -> int | None:
    """Of codes that are still what was dequantised, or bytes already."""
    if codes.shape is None or codes.dtype not in (ir.DataType.UINT4, ir.DataType.UINT8):
        return None
    whole = math.prod(int(dim) for dim in codes.shape) == math.prod(shape)
    return 8 if whole and codes.dtype == ir.DataType.UINT8 else 4


def _constant(value: ir.Value) -> int | None:
    """The number that a tensor is full of."""
    node = value.producer()
    if node is not None and node.op_type == "Cast" and node.inputs[0] is not None:
        node = node.inputs[0].producer()
    if node is None or node.op_type != "ConstantOfShape" or "value" not in node.attributes:
        return None
    return int(node.attributes["value"].as_tensor().numpy()[0])
