"""Passes common to all lowerings: experts of idle columns, cache length, RoPE tables, clean-up, weight plan."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common

from ...plugins.errors import REPORT, BuildError
from ...plugins.number_types import BY_NUMPY
from ...plugins.op_spec import DOMAIN
from ..node_tape import Nodes
from .lowering_result import GraphWeight, Lowered

PARTS_METADATA = "peagle.parts"
SPARSE = (
    "QuantizedExperts",
    "WideExperts",
    "Mxfp4GateUp",
    "Mxfp4Down",
)  # these read only the experts that some token has
_EXPERTS = ("SparseExperts", *SPARSE)
ROPE_METADATA = "peagle.rope"  # frequencies of the rotary tables, by the path of their module


def share_experts(model: ir.Model, ops: Collection[str] = _EXPERTS) -> None:
    """Assign the first token's experts to all columns beyond ``window_len``, in place, for nodes of these ``ops``.

    Idle rows and columns beyond a window run through the target too. Their router would select arbitrary experts, whose
    weights would be read for unused results.
    """
    inputs_by_name = {value.name: value for value in model.graph.inputs}
    layers = [node for node in model.graph if node.domain == DOMAIN and node.op_type in ops]
    if not layers or not {"input_ids", "window_len"} <= inputs_by_name.keys():
        return
    op = Nodes()
    columns = op.Range(op.constant(0), op.Squeeze(op.Shape(inputs_by_name["input_ids"], start=1)), op.constant(1))
    lengths = op.Unsqueeze(op.Cast(inputs_by_name["window_len"], to=ir.DataType.INT64), op.constant([1]))
    holds = op.Reshape(op.Less(columns, lengths), op.constant([-1, 1]))
    first = op.Reshape(op.ArgMax(op.Cast(holds, to=ir.DataType.FLOAT), axis=0), op.constant([1]))
    model.graph.insert_before(model.graph[0], op.nodes)
    replacements: dict[ir.Value | None, ir.Value] = {}
    for node in layers:
        experts = node.inputs[1]
        if experts not in replacements:
            tape = Nodes()
            shared = tape.Where(holds, experts, tape.Gather(experts, first, axis=0))
            shared.shape, shared.type = experts.shape, experts.type
            model.graph.insert_before(node, tape.nodes)
            replacements[experts] = shared
        node.replace_input_with(1, replacements[experts])


def fix_cache_length(model: ir.Model, length: int) -> None:
    """Set the static T of the caches in the graph's interface."""
    for value in (*model.graph.inputs, *model.graph.outputs):
        if value.shape is not None:
            value.shape = ir.Shape([length if d == "T" else d for d in value.shape])


def fill_rope_tables(model: ir.Model, length: int) -> None:
    """Fill in cos and sin of every position 0..T-1, ``[T, D/2]``, from the frequencies of the modeling code.

    Computed in FP32 and rounded once to the graph's type. Raises ``BuildError`` for values that are not finite.
    """
    for prefix, rope in json.loads(model.metadata_props.pop(ROPE_METADATA)).items():
        with np.errstate(all="ignore"):  # the result is checked
            inverse = np.array(rope["inv_freq"], np.float32)
            angles = np.arange(length, dtype=np.float32)[:, None] * inverse
            tables = {name: f(angles) * np.float32(rope["scaling"]) for name, f in (("cos", np.cos), ("sin", np.sin))}
        for name, table in tables.items():
            value = model.graph.initializers.get(f"{prefix}.{name}")
            if value is not None:
                scaled = table.astype(value.const_value.dtype.numpy())
                _require_numbers(f"{prefix}.{name}", scaled)
                value.const_value = ir.tensor(scaled, name=value.name)
                value.shape = ir.Shape(table.shape)


def _require_numbers(name: str, table: np.ndarray[Any, Any]) -> None:
    finite = np.isfinite(table.astype(np.float32)).all(axis=1)
    if not finite.all():
        raise BuildError(
            f"the rotary table {name} has NaN or infinite values from position {int(finite.argmin())} on",
            why="rope_theta or another RoPE entry of config.json gives invalid frequencies",
            fix="use the config.json that belongs to the checkpoint",
        )


def stacked_parts(graph: ir.Graph, parts: Sequence[ir.Value]) -> ir.Value:
    """Create an initializer that stacks the initializers ``parts`` along axis 0; their weights are streamed in turn."""
    names = [str(part.name) for part in parts]
    tensors: list[Any] = [part.const_value for part in parts]
    shape = ir.Shape([sum(int(tensor.shape[0]) for tensor in tensors), *tensors[0].shape[1:]])
    name, dtype = "+".join(names), tensors[0].dtype
    packed = ir.Value(name=name, shape=shape, type=ir.TensorType(dtype))
    packed.const_value = ir.ExternalTensor("weights", None, None, dtype, shape=shape, name=name)
    packed.metadata_props[PARTS_METADATA] = json.dumps(names)
    graph.register_initializer(packed)
    return packed


def finish(model: ir.Model) -> Lowered:
    """Remove unused and duplicate nodes, and list the weights to stream. Raises ``BuildError`` for leftovers."""
    common.CommonSubexpressionEliminationPass()(model)
    common.RemoveUnusedNodesPass()(model)
    common.TopologicalSortPass()(model)
    weights = []
    for name, value in model.graph.initializers.items():
        tensor = value.const_value
        if not isinstance(tensor, ir.ExternalTensor):
            continue
        dtype = tensor.dtype.numpy().name
        if dtype not in BY_NUMPY:
            raise BuildError(
                f"weight {name} was traced as {dtype}",
                why=f"the type of a weight must be one of {', '.join(BY_NUMPY)}",
                fix=REPORT,
            )
        parts = tuple(json.loads(value.metadata_props.pop(PARTS_METADATA, json.dumps([name]))))
        weights.append(GraphWeight(str(name), parts, tuple(int(d) for d in tensor.shape), dtype))
    return Lowered(model, tuple(weights))
