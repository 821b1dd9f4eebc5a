"""Small quantized graphs and their values, for the tests of lowerings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime
from hypothesis import strategies as st

from peagle.compiler.precision.rounding.numbers_to_codes import block_scales, rounded, values_of
from peagle.graphs import graph_files
from peagle.graphs.lowering import LOWERINGS
from peagle.graphs.lowering.shared_passes import ROPE_METADATA, finish
from peagle.graphs.quantization import Quantization, QuantizedWeight, quantize
from peagle.graphs.quantization.quantized_weight import Codes
from peagle.graphs.stream_weights import attach

Array = np.ndarray[Any, Any]
COLUMNS, ROWS = 64, 48
BITS: dict[Codes, int] = {"uint4": 4, "uint8": 8}
KINDS = st.sampled_from(sorted(BITS))


class Small:
    """A graph of some quantized weights, with values: ``codes``, ``scales`` and what they mean, ``wide``."""

    def __init__(self, model: ir.Model, weights: Mapping[str, Array], how: Mapping[str, QuantizedWeight]) -> None:
        self.model = model
        self.made: Quantization = quantize(model, how)
        self.codes: dict[str, Array] = {}
        self.scales: dict[str, Array] = {}
        self.wide: dict[str, Array] = {}
        for name, values in weights.items():
            kind, grouped = how[name].codes, values.reshape(*values.shape[:-1], -1, how[name].block)
            scales = block_scales(grouped, kind)
            codes = rounded(grouped, scales[..., None], kind)
            self.codes[name], self.scales[name] = codes.reshape(values.shape), scales
            self.wide[name] = values_of(codes, scales[..., None], kind).reshape(values.shape)

    def read(self, name: str) -> Array:
        stream = self.made.streams[name]
        return (self.scales if stream.scales else self.codes)[stream.weight]

    def lowered(self, lowering: str, path: Path) -> ir.Model:
        """Lower it, and write it with its weights to ``path``."""
        LOWERINGS[lowering].apply(self.model)
        lowered = finish(self.model)
        self.runs = attach(lowered, self.read, path)
        return graph_files.load(path)


def _value(name: str, shape: list[Any], kind: ir.DataType = ir.DataType.FLOAT) -> ir.Value:
    return ir.Value(name=name, shape=ir.Shape(shape), type=ir.TensorType(kind))


def _weight(name: str, shape: list[int]) -> ir.Value:
    value = _value(name, shape)
    value.const_value = ir.ExternalTensor("weights", None, None, ir.DataType.FLOAT, shape=value.shape, name=name)
    return value


def linears(*names: str, rows: int = ROWS, columns: int = COLUMNS) -> ir.Model:
    """``y.w = x @ w.T`` for every weight."""
    x, outputs, nodes = _value("x", ["N", columns]), [], []
    weights = [_weight(name, [rows, columns]) for name in names]
    for weight in weights:
        turn = ir.node("Transpose", [weight], {"perm": [1, 0]})
        product = ir.node("MatMul", [x, turn.outputs[0]])
        last = ir.node("Identity", product.outputs)
        nodes += [turn, product, last]
        outputs.append(last.outputs[0])
        outputs[-1].name, outputs[-1].shape = f"y.{weight.name}", ir.Shape(["N", rows])
        outputs[-1].type = ir.TensorType(ir.DataType.FLOAT)
    graph = ir.Graph([x], outputs, nodes=nodes, initializers=weights, opset_imports={"": 24}, name="linears")
    return ir.Model(graph, ir_version=11, metadata_props={ROPE_METADATA: "{}"})


def embedded(name: str, *, wide: bool = False) -> ir.Model:
    """Rows of the matrix of a linear are looked up in it, too; ``wide``: and something adds to it."""
    model = linears(name)
    graph = model.graph
    ids = _value("input_ids", ["M"], ir.DataType.INT64)
    graph.inputs.append(ids)
    weight = graph.initializers[name]
    nodes = [ir.node("Gather", [weight, ids])] + ([ir.node("Add", [weight, weight])] if wide else [])
    for node in nodes:
        graph.append(node)
        node.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
        node.outputs[0].name = f"of.{node.op_type}"
        graph.outputs.append(node.outputs[0])
    return model


def tied() -> ir.Model:
    """``y = x @ w.T``, and ``rows = w[ids]``: a head that is the embedding too."""
    model = linears("w")
    ids = _value("ids", ["N"], ir.DataType.INT64)
    lookup = ir.node("Gather", [model.graph.initializers["w"], ids])
    rows = lookup.outputs[0]
    rows.name, rows.shape, rows.type = "rows", ir.Shape(["N", COLUMNS]), ir.TensorType(ir.DataType.FLOAT)
    model.graph.insert_before(model.graph[0], lookup)
    model.graph.inputs.append(ids)
    model.graph.outputs.append(rows)
    return model


def experts(terms: Mapping[str, float], biased: bool) -> ir.Model:
    count, hidden, inner, active = 4, 64, 32, 2
    inputs = [
        _value("x", ["N", hidden]), _value("experts", ["N", active], ir.DataType.INT64),
        _value("scores", ["N", active]),
    ]  # fmt: skip
    weights = [_weight("gate_up", [count, 2 * inner, hidden]), _weight("down", [count, hidden, inner])]
    biases = [_value("gate_up_bias", [count, 2 * inner]), _value("down_bias", [count, hidden])] if biased else []
    node = ir.node("SparseExperts", [*inputs, *weights, *biases], dict(terms), domain="peagle")
    y = node.outputs[0]
    y.name, y.shape, y.type = "y", ir.Shape(["N", hidden]), ir.TensorType(ir.DataType.FLOAT)
    graph = ir.Graph(
        [*inputs, *biases], [y], nodes=[node], initializers=weights, opset_imports={"": 24, "peagle": 1}, name="layer"
    )
    return ir.Model(graph, ir_version=11)


def outputs_of(path: Path, **inputs: Array) -> list[Array]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, inputs))


def in_blocks(kind: Codes, block: int, *shape: int) -> QuantizedWeight:
    return QuantizedWeight(kind, (*shape[:-1], shape[-1] // block), block)


def noise(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def small_linears(kind: Codes, block: int, *names: str) -> Small:
    weights = {name: noise(place, ROWS, COLUMNS) for place, name in enumerate(names)}
    return Small(linears(*names), weights, dict.fromkeys(names, in_blocks(kind, block, ROWS, COLUMNS)))


def with_wide_inputs(model: ir.Model) -> ir.Model:
    """Let the kernels round nothing but what is rounded already."""
    for node in model.graph:
        if "accuracy_level" in node.attributes:
            node.attributes["accuracy_level"] = ir.AttrInt64("accuracy_level", 0)
    return model


def ops(model: ir.Model) -> Counter[str]:
    return Counter(node.op_type for node in model.graph if node.op_type != "Identity")
