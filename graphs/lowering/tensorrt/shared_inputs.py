"""Rounded inputs that products on both sides of a plugin share.

TensorRT compiles what lies before one of our plugins apart from what lies behind, and hands on wide numbers between the
two. A product behind it whose rounded input is also read before it would get that input as it was dequantised, and be
multiplied wide.
"""

from __future__ import annotations

import onnx_ir as ir


def round_apart(graph: ir.Graph, value: ir.Value) -> None:
    """Give the products that ``value`` is made from roundings of their own where they share one with others."""
    for product in _products(value):
        pair = _rounding(product.inputs[0])
        if pair is None or len(pair[1].outputs[0].uses()) < 2:
            continue
        rounds, restores = pair
        x, scale = rounds.inputs[0], _copied(graph, rounds.inputs[1])
        codes = _again(graph, rounds, [x, scale], product)
        product.replace_input_with(0, _again(graph, restores, [codes, scale], product))


def _products(value: ir.Value) -> list[ir.Node]:
    """The nearest products before it: the linear that it came from."""
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
    """The two nodes that round to codes of one scale and back; None if ``value`` was not rounded so."""
    restores = value.producer() if value is not None else None
    if restores is None or restores.op_type != "DequantizeLinear" or restores.inputs[0] is None:
        return None
    rounds = restores.inputs[0].producer()
    return (rounds, restores) if rounds is not None and rounds.op_type == "QuantizeLinear" else None


def _copied(graph: ir.Graph, scale: ir.Value | None) -> ir.Value:
    """Another constant of the same number: TensorRT makes one of two nodes that read the same."""
    if scale is None or scale.const_value is None:
        raise ValueError("a rounding without a constant scale")
    twin = ir.Value(name=f"{scale.name}.apart", shape=scale.shape, type=scale.type, const_value=scale.const_value)
    graph.register_initializer(twin)
    return twin


def _again(graph: ir.Graph, node: ir.Node, inputs: list[ir.Value | None], reader: ir.Node) -> ir.Value:
    """The value of a copy of ``node`` over other inputs, made just before what reads it."""
    copied = ir.node(node.op_type, inputs, dict(node.attributes))
    graph.insert_before(reader, copied)
    output, like = copied.outputs[0], node.outputs[0]
    output.name, output.shape, output.type = f"{like.name}.apart", like.shape, like.type
    return output
