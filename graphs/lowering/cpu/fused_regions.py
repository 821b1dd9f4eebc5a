"""Fuse runs of nodes into ``FusedRegion`` nodes, which execute their kernels in one parallel loop.

A model-local function holds the original nodes, so a session without the kernels runs the same file. Nodes that
``steps`` rejects stay outside and end a region.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir
from onnx_ir.passes import common

from ....plugins.op_spec import DOMAIN
from ...fused_region_program import FUSED_REGION, PROGRAM
from .steps import VIEWS, rule_of

_MIN = 3  # minimum number of steps, not counting views
_SAME_TYPE = ("Add", "Sub", "Mul", "Div", "Split", "Reshape", "Transpose", "Identity")


@dataclass(frozen=True)
class Joined:
    """The result for a graph: the number of fused nodes, and reasons for the rest, by operator."""

    nodes: int
    outside: Mapping[str, str]


def join(model: ir.Model) -> Joined:
    """Replace runs of nodes in place."""
    common.TopologicalSortPass()(model)
    rejections: dict[ir.Node, str] = {}
    runs: dict[int, list[ir.Node]] = defaultdict(list)
    for node, stage in _stages(model.graph, rejections).items():
        runs[stage].append(node)
    nodes = 0
    made = 0
    for run in runs.values():
        if sum(node.op_type not in VIEWS for node in run) < _MIN:
            rejections |= dict.fromkeys(run, "too few consecutive steps")
            continue
        _replace(model, run, made)
        nodes, made = nodes + len(run), made + 1
    common.TopologicalSortPass()(model)
    outside = {node.op_type: why for node, why in rejections.items()}
    return Joined(nodes, outside)


def _stages(graph: ir.Graph, rejections: dict[ir.Node, str]) -> dict[ir.Node, int]:
    """Assign the nodes that can be steps to candidate regions, by number.

    A node outside that reads a region's output ends the region for all its own readers, so regions form no cycles.
    """
    stages: dict[ir.Node, int] = {}
    outside: dict[ir.Node, int] = {}
    types: dict[ir.Value, ir.DataType | None] = {}
    for node in graph:
        kind = _first_input_type(node, types)
        types |= {value: value.dtype or kind for value in node.outputs}
        before = [value.producer() for value in node.inputs if value is not None]
        inside = [stages[each] for each in before if each in stages]
        apart = [outside[each] for each in before if each in outside]
        why = _unsupported_reason(node, types)
        if why is None:
            stages[node] = max([0, *inside, *apart])
            types |= {value: value.dtype or ir.DataType.FLOAT for value in node.outputs}
        else:
            rejections[node] = why
            outside[node] = max([0, *apart, *(stage + 1 for stage in inside)])
    return stages


def _first_input_type(node: ir.Node, types: Mapping[ir.Value, ir.DataType | None]) -> ir.DataType | None:
    first = node.inputs[0] if node.inputs and node.op_type in _SAME_TYPE else None
    return None if first is None else types.get(first) or first.dtype


def _unsupported_reason(node: ir.Node, types: Mapping[ir.Value, ir.DataType | None]) -> str | None:
    rule = rule_of(node)
    if rule is None:
        return "there is no step for this op"
    kinds = {types.get(value) or value.dtype for value in (node.inputs[0], node.outputs[0]) if value is not None}
    if node.domain != DOMAIN and kinds - {ir.DataType.FLOAT, None}:
        return "the type is not float32"
    if node.domain != DOMAIN and kinds == {None}:
        return "the type is unknown"
    return rule.unsupported_reason(node)


def _replace(model: ir.Model, run: Sequence[ir.Node], number: int) -> None:
    """Replace a run by one node."""
    graph, inside = model.graph, set(run)
    outer_inputs = [*dict.fromkeys(v for n in run for v in n.inputs if v is not None and v.producer() not in inside)]
    results = [v for n in run for v in n.outputs if v in graph.outputs or any(u not in inside for u, _ in v.uses())]
    program = _program(run, outer_inputs, results)
    inner_inputs = {v: ir.Value(name=v.name, type=v.type, shape=v.shape) for v in outer_inputs}
    float32 = ir.TensorType(ir.DataType.FLOAT)
    outer_outputs = [ir.Value(name=v.name, type=v.type or float32, shape=v.shape) for v in results]
    for node in run:
        for at, value in enumerate(node.inputs):
            if value in inner_inputs:
                node.replace_input_with(at, inner_inputs[value])
    for inner, outer in zip(results, outer_outputs, strict=True):
        for user, at in [*inner.uses()]:
            if user not in inside:
                user.replace_input_with(at, outer)
        for at, value in enumerate(graph.outputs):
            if value is inner:
                graph.outputs[at] = outer
    graph.remove(run)
    attributes = [ir.AttrString(PROGRAM, program), ir.AttrInt64("inputs", len(outer_inputs))]
    body = _inline_functions(
        ir.Graph([*inner_inputs.values()], results, nodes=run, opset_imports=model.opset_imports), model
    )
    unset = [ir.Attr(each.name, each.type, None) for each in attributes]
    function = ir.Function(DOMAIN, FUSED_REGION, str(number), graph=body, attributes=unset)
    model.functions[function.identifier()] = function
    name = f"fused_region.{number}"
    graph.append(
        ir.Node(DOMAIN, FUSED_REGION, outer_inputs, attributes, overload=str(number), outputs=outer_outputs, name=name)
    )


def _inline_functions(body: ir.Graph, model: ir.Model) -> ir.Graph:
    """Inline our ops to standard operators: inside functions, ONNX Runtime does not resolve overloads."""
    own = [
        _own_function(node, number, model)
        for number, node in enumerate(body)
        if node.op_identifier() in model.functions
    ]
    alone = ir.Model(body, ir_version=model.ir_version, functions=own)
    common.InlinePass()(alone)
    return alone.graph


def _own_function(call: ir.Node, number: int, model: ir.Model) -> ir.Function:
    """Give a call a copy of its function, with names of its own.

    Otherwise the inliner looks for a free name from the first number on, for every node of every call: minutes for a
    deep model.
    """
    own = model.functions[call.op_identifier()].clone()
    own.overload = call.overload = f"{call.overload}.{number}"
    for node in own.all_nodes():
        node.name = f"{number}.{node.name or node.op_type}"
        for value in node.outputs:
            value.name = f"{number}.{value.name}"
    return own


def _program(run: Sequence[ir.Node], inputs: Sequence[ir.Value], results: Sequence[ir.Value]) -> str:
    """Return the lines that ``plugins/cpu/fused_region/program.h`` parses."""
    numbers = {value: at for at, value in enumerate(inputs)}
    read = {value for node in run for value in node.inputs} | {*results}
    lines = []
    for node in run:
        rule = rule_of(node)
        if rule is None:
            raise ValueError(f"{node.op_type} is not a step")
        step = rule.encode(node)
        given = ",".join("-" if value is None else str(numbers[value]) for value in node.inputs[: step.inputs])
        made = []
        for value in node.outputs:
            if value in read:
                numbers[value] = len(numbers)
            made.append(str(numbers[value]) if value in read else "-")
        attributes = [f"{name}={value}" for name, value in step.attributes.items()]
        lines.append(" ".join([node.op_type, given, ">", ",".join(made), *attributes]))
    return "\n".join([*lines, "outputs " + ",".join(str(numbers[value]) for value in results)])
