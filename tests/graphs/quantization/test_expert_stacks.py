"""Expert stacks in the layout of TensorRT's expert layer: split while they are written, with equal values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peagle.graphs import graph_files
from peagle.graphs.lowering import LOWERINGS
from peagle.graphs.lowering.shared_passes import ROPE_METADATA, finish
from peagle.graphs.quantization import QuantizedWeight, Rounding, products_of, quantize, split_experts
from peagle.graphs.stream_weights import attach, refer
from peagle.graphs.weight_cuts import Cut, whole_matrices
from peagle.plugins.errors import BuildError
from peagle.plugins.ops import OPS
from tests.graphs.quantized_graphs import experts, noise, outputs_of

E4M3 = "float8e4m3fn"
COUNT, HIDDEN, INNER, ACTIVE = 4, 64, 32, 2  # of ``experts``
SHAPES = {"gate_up": (COUNT, 2 * INNER, HIDDEN), "down": (COUNT, HIDDEN, INNER)}
X_SCALE, INNER_SCALE = 0.02, 0.05
SCALES = {"all": (), "matrices": (COUNT,), "halves": (COUNT, 2)}


class Layer:
    """Routed experts alone, with values; codes have a scale for each of ``kind``, and wide ones none."""

    def __init__(self, kind: str, terms: dict[str, float], biased: bool, seed: int) -> None:
        self.terms, self.kind, self.streams = terms, kind, {}
        self.model = experts(terms, biased)
        self.model.metadata_props[ROPE_METADATA] = "{}"
        draw = np.random.default_rng(seed)
        self.weights = {name: 0.3 * noise(seed + at, *shape) for at, (name, shape) in enumerate(SHAPES.items())}
        self.codes, self.scales, how = {}, {}, {}
        for name, values in self.weights.items() if kind else ():
            scale = draw.uniform(0.001, 0.004, SCALES[kind]).astype(np.float32)
            if kind == "halves":  # rows of gate and up in turn; of down all alike
                scale = np.tile(scale, (1, INNER)) if name == "gate_up" else np.repeat(scale[:, :1], HIDDEN, axis=1)
            spread = scale.reshape(*scale.shape, *[1] * (3 - scale.ndim))
            self.codes[name] = (values / spread).clip(-448, 448).astype(ml_dtypes.float8_e4m3fn)
            self.scales[name], self.weights[name] = scale, self.codes[name].astype(np.float32) * spread
            step = X_SCALE if name == "gate_up" else INNER_SCALE
            how[name] = QuantizedWeight("float8_e4m3fn", scale.shape, input=Rounding("float8_e4m3fn", step))
        if kind:
            self.streams = dict(quantize(self.model, how).streams)
        shapes: dict[str, Any] = {"x": (3, HIDDEN), "scores": (3, ACTIVE)}
        shapes |= {"gate_up_bias": (COUNT, 2 * INNER), "down_bias": (COUNT, HIDDEN)} if biased else {}
        self.inputs = {name: noise(seed + 9 + at, *shape) for at, (name, shape) in enumerate(shapes.items())}
        self.inputs["scores"] = abs(self.inputs["scores"])
        self.inputs["experts"] = np.array([draw.permutation(COUNT)[:ACTIVE] for _ in range(3)])

    def read(self, name: str) -> Any:
        """In runs that end within a matrix."""
        if name not in self.streams:
            values = self.weights[name]
        else:
            stream = self.streams[name]
            values = (self.scales if stream.scales else self.codes)[stream.weight]
        return np.array_split(values.reshape(-1), 3)

    def expected(self) -> np.ndarray[Any, Any]:
        values = dict(self.inputs)
        terms: dict[str, Any] = dict(self.terms)
        if self.kind:
            rounded = (values["x"] / np.float32(X_SCALE)).clip(-448, 448).astype(ml_dtypes.float8_e4m3fn)
            values["x"] = rounded.astype(np.float32) * np.float32(X_SCALE)
            terms |= {"inner_codes": "float8_e4m3fn", "inner_scale": INNER_SCALE}
        biases = [values[name] for name in ("gate_up_bias", "down_bias") if name in values]
        given = [values[name] for name in ("x", "experts", "scores")]
        (y,) = OPS["SparseExperts"].reference(*given, *self.weights.values(), *biases, **terms)
        return np.asarray(y)


TERMS = {"plain": (1.0, 0.0, 0.0), "clamped": (1.702, 1.0, 0.25)}


@given(
    kind=st.sampled_from(["", *SCALES]),
    terms=st.sampled_from(sorted(TERMS)),
    biased=st.booleans(),
    seed=st.integers(0, 9),
)
@settings(max_examples=12, deadline=None)
def test_layer_and_semantic_graph_share_one_file_and_match_the_reference(
    kind: str, terms: str, biased: bool, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("layer")
    layer = Layer(kind, dict(zip(("alpha", "beta", "limit"), TERMS[terms], strict=True)), biased, seed)
    semantic = layer.model.clone()
    cuts = split_experts(layer.model)
    assert split_experts(semantic) == cuts
    LOWERINGS["tensorrt-sm100"].apply(layer.model)
    lowered = finish(layer.model)
    runs = attach(lowered, layer.read, folder / "model.onnx", cuts=cuts)
    refer(semantic, runs, 1)
    LOWERINGS["std"].apply(semantic)
    graph_files.save(semantic, folder / "semantic.onnx")
    (node,) = [each for each in graph_files.load(folder / "model.onnx").graph if each.op_type == "TRT_MoE"]
    assert ("quantization_mode" in node.attributes) == bool(kind)
    products = products_of(graph_files.load(folder / "model.onnx"))
    assert {(p.stored, p.computed) for p in products} == {(E4M3, E4M3) if kind else ("float32", "float32")}
    assert sum(p.numbers for p in products) == sum(values.size for values in layer.weights.values())
    expected = layer.expected()
    # The seventh digit of a number may decide to which neighbour it is rounded.
    tolerance = (0.05 if kind else 1e-5) * max(float(abs(expected).max()), 1.0)
    found = [outputs_of(folder / name, **layer.inputs)[0] for name in ("model.onnx", "semantic.onnx")]
    np.testing.assert_allclose(found[0], expected, rtol=0, atol=tolerance)
    np.testing.assert_allclose(found[0], found[1], rtol=0, atol=tolerance)


def test_layer_weights_are_constants_with_only_scaling() -> None:
    layer = Layer("halves", dict(zip(("alpha", "beta", "limit"), TERMS["plain"], strict=True)), False, 0)
    split_experts(layer.model)
    LOWERINGS["tensorrt-sm100"].apply(layer.model)
    (node,) = [each for each in finish(layer.model).model.graph if each.op_type == "TRT_MoE"]
    for place in (0, 3, 4, 5):
        back = node.inputs[place].producer()
        assert back.op_type == "DequantizeLinear"
        assert back.inputs[0].is_initializer() == (place > 0)
        assert back.inputs[0].dtype == ir.DataType.FLOAT8E4M3FN
    assert node.inputs[5].producer().inputs[0].shape == (COUNT, INNER, HIDDEN)
    assert node.inputs[9].const_value.numpy() == np.float32(INNER_SCALE)


def test_unsupported_or_shared_stacks_are_kept(tmp_path: Path) -> None:
    model = experts({}, False)
    rounding = Rounding("int8", 0.02)
    quantize(model, {name: QuantizedWeight("int8", shape[:2], input=rounding) for name, shape in SHAPES.items()})
    assert split_experts(model) == {}
    shared = experts({}, False)
    weight = shared.graph.initializers["down"]
    shared.graph.append(ir.node("Identity", [weight]))
    assert split_experts(shared) == {}


@given(sizes=st.lists(st.integers(1, 20), min_size=1, max_size=9), seed=st.integers(0, 9))
@settings(max_examples=30, deadline=None)
def test_cuts_of_runs_are_cuts_of_the_whole(sizes: list[int], seed: int) -> None:
    count, rows, columns = 3, 4, 5
    stack = np.random.default_rng(seed).integers(0, 255, (count, rows, columns), np.uint8)
    places = [at for at in np.cumsum(sizes) if at < stack.size]
    cut = Cut("w", rows, columns, 1, 2)
    parts = [cut.of(part) for part in whole_matrices(np.split(stack.reshape(-1), places), rows, columns)]
    np.testing.assert_array_equal(np.concatenate(parts), stack[:, 1::2].swapaxes(1, 2))


def test_misaligned_and_uneven_stacks_are_rejected() -> None:
    with pytest.raises(BuildError, match="is truncated"):
        list(whole_matrices([np.zeros(7, np.uint8)], 2, 2))
    with pytest.raises(BuildError, match="rows of w differ"):
        Cut("w", 4, 1, 0, 2, one=True).of(np.arange(4, dtype=np.float32).reshape(1, 4, 1))
