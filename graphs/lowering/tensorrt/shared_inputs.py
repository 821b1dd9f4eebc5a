"""Quantized inputs shared by matmuls on both sides of a plugin.

TensorRT compiles the parts before and after a plugin separately, and passes wide values between them. If a matmul after
the plugin shares its quantized input with one before it, it receives the dequantized input and is computed in the wide
type.
"""

from __future__ import annotations

import onnx_ir as ir


def quantize_separately(graph: ir.Graph, value: ir.Value) -> None:
    """Give the matmuls behind ``value`` separate quantization nodes if they share them with others."""
    for product in _products(value):
        pair = _rounding(product.inputs[0])
        if pair is None or len(pair[1].outputs[0].uses()) < 2:
            continue
        rounds, restores = pair
        x, scale = rounds.inputs[0], _copied(graph, rounds.inputs[1])
        codes = _again(graph, rounds, [x, scale], product)
        product.replace_input_with(0, _again(graph, restores, [codes, scale], product))


def _products(value: ir.Value) -> list[ir.Node]:
    """Return the nearest matmuls before a value: the linear that produced it."""
    products, visited, queue = [], {value}, [value]
    while queue:
        node = queue.pop().producer()
        if node is None:
            continue
        if node.op_type == "MatMul":
            products.append(node)
            continue
        before = [x for x in node.inputs if x is not None and x not in visited]
        visited.update(before)
        queue += before
    return list(dict.fromkeys(products))


def _rounding(value: ir.Value | None) -> tuple[ir.Node, ir.Node] | None:
    """Return the nodes that quantize and dequantize ``value`` with one scale; None if it is not quantized so."""
    restores = value.producer() if value is not None else None
    if restores is None or restores.op_type != "DequantizeLinear" or restores.inputs[0] is None:
        return None
    rounds = restores.inputs[0].producer()
    return (rounds, restores) if rounds is not None and rounds.op_type == "QuantizeLinear" else None


def _copied(graph: ir.Graph, scale: ir.Value | None) -> ir.Value:
    """Return another constant with the same value: TensorRT merges two nodes with equal inputs."""
    if scale is None or scale.const_value is None:
        raise ValueError("the quantization has no constant scale")
    copy = ir.Value(name=f"{scale.name}.apart", shape=scale.shape, type=scale.type, const_value=scale.const_value)
    graph.register_initializer(copy)
    return copy


def _again(graph: ir.Graph, node: ir.Node, inputs: list[ir.Value | None], reader: ir.Node) -> ir.Value:
    """Return the output of a copy of ``node`` with other inputs, inserted directly before its reader."""
    copied = ir.node(node.op_type, inputs, dict(node.attributes))
    graph.insert_before(reader, copied)
    output, like = copied.outputs[0], node.outputs[0]
    output.name, output.shape, output.type = f"{like.name}.apart", like.shape, like.type
    return output
