"""Linears with the same input become one matmul if their weights are stored alike, with equal results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from peagle.graphs.lowering.shared_passes import finish
from peagle.graphs.lowering.tensorrt import joined_linears, mxfp8
from peagle.graphs.quantization import QuantizedWeight, Rounding, products_of, quantize
from tests.graphs.lowering.tensorrt.small_graphs import linear, results, stored, value, weight

COLUMNS, ROWS = 64, {"q": 24, "k": 8, "v": 16}
E4M3 = "float8_e4m3fn"
TENSOR = {name: QuantizedWeight(E4M3, (), input=Rounding(E4M3, 0.5)) for name in ROWS}
BY_ROW = {name: QuantizedWeight(E4M3, (rows,), input=Rounding(E4M3, 0.5)) for name, rows in ROWS.items()}
FORMS: dict[str, Mapping[str, QuantizedWeight]] = {
    "fp8": TENSOR,
    "fp8 by row": BY_ROW,
    "int8": {name: QuantizedWeight("int8", (rows,), input=Rounding("int8", 0.5)) for name, rows in ROWS.items()},
    "int4": {name: QuantizedWeight("int4", (rows, 2), 32) for name, rows in ROWS.items()},
    "mxfp8": {
        name: QuantizedWeight(E4M3, (rows, 2), 32, Rounding(E4M3, block=32), powers=True) for name, rows in ROWS.items()
    },
}


def _model(forms: Mapping[str, QuantizedWeight], inputs: int = 1) -> ir.Model:
    """``q``, ``k`` and ``v`` of ``x``; with more ``inputs``, each has one of its own."""
    given = [value(f"x{i}", ["B", "S", COLUMNS]) for i in range(inputs)]
    weights = [weight(name, rows, COLUMNS) for name, rows in ROWS.items()]
    outputs = [linear(given[place % inputs], each) for place, each in enumerate(weights)]
    nodes = []
    for name, output in zip(ROWS, outputs, strict=True):
        output.name, product = f"{name}.out", output.producer()
        assert product is not None
        nodes += [product.inputs[1].producer(), product]  # type: ignore[union-attr]
    graph = ir.Graph(given, outputs, nodes=nodes, initializers=weights, opset_imports={"": 24})  # type: ignore[arg-type]
    model = ir.Model(graph, ir_version=11)
    quantize(model, forms)
    return model


def _matmuls(model: ir.Model) -> int:
    return Counter(node.op_type for node in model.graph)["MatMul"]


@pytest.mark.parametrize("form", FORMS)
def test_one_matmul_gives_the_results_of_three(form: str, tmp_path: Path) -> None:
    before, after = _model(FORMS[form]), _model(FORMS[form])
    values = stored(before)
    joined_linears.apply(after)
    for model in (before, after):
        mxfp8.apply(model)
    assert (_matmuls(before), _matmuls(after)) == (3, 1)
    x = np.random.default_rng(0).normal(size=(2, 3, COLUMNS)).astype(np.float32)
    separate = results(before, values, {"x0": x}, tmp_path / "before")
    together = results(after, values, {"x0": x}, tmp_path / "after")
    assert [each.shape for each in together] == [(2, 3, rows) for rows in ROWS.values()]
    for one, other in zip(separate, together, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def test_weights_are_streamed_one_by_one_and_keep_their_types() -> None:
    model = _model(TENSOR)
    joined_linears.apply(model)
    (product,) = products_of(model)
    assert (product.weight, product.stored, product.computed) == ("q+k+v", "float8e4m3fn", "float8e4m3fn")
    parts = {weight.name: (weight.parts, weight.shape) for weight in finish(model).weights}
    scales = {f"{name}_scale": ((f"{name}_scale",), ()) for name in ROWS}  # repeated in the graph, for each row
    assert parts == {"q+k+v": (("q", "k", "v"), (sum(ROWS.values()), COLUMNS)), **scales}


@pytest.mark.parametrize(
    ("forms", "left"),
    [
        ({}, 3),  # TensorRT joins these by itself
        (TENSOR | {"k": BY_ROW["k"]}, 2),
        (TENSOR | {"v": FORMS["int8"]["v"]}, 2),
        ({name: TENSOR[name] for name in "qk"}, 2),
    ],
)
def test_weights_stored_in_another_form_stay_apart(forms: Mapping[str, QuantizedWeight], left: int) -> None:
    model = _model(forms)
    joined_linears.apply(model)
    assert _matmuls(model) == left


def test_linears_of_other_inputs_stay_apart() -> None:
    model = _model(TENSOR, inputs=3)
    joined_linears.apply(model)
    assert _matmuls(model) == 3


def test_weights_that_are_not_turned_stay_apart() -> None:
    x, columns = value("x", ["B", "S", 8]), [weight(name, 8, 4) for name in "ab"]
    products = [ir.node("MatMul", [x, each]) for each in columns]
    outputs = [product.outputs[0] for product in products]
    graph = ir.Graph([x], outputs, nodes=products, initializers=columns, opset_imports={"": 24})
    model = ir.Model(graph, ir_version=11)
    joined_linears.apply(model)
    assert _matmuls(model) == 2


def test_a_weight_that_another_node_reads_stays_apart() -> None:
    model = _model(BY_ROW)
    codes = model.graph.initializers["q"]
    model.graph.append(ir.node("Identity", [codes]))
    joined_linears.apply(model)
    assert _matmuls(model) == 2
