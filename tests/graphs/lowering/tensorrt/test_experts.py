"""``tensorrt-sm100``: routed experts as TensorRT's expert layer, with an equivalent body for ONNX Runtime."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peagle.graphs import graph_files, stream_weights, trace
from peagle.graphs.lowering import LOWERINGS, lower
from peagle.graphs.lowering.shared_passes import finish
from peagle.graphs.quantization import split_experts
from peagle.plugins.ops import OPS
from peagle.plugins.ops.sparse_experts.spec import CLAMPED, GELU
from peagle.plugins.tensorrt.import_tensorrt import child_environment
from tests.graphs.checking import check
from tests.graphs.quantization.test_expert_stacks import Layer
from tests.graphs.running import Graph, target_inputs
from tests.graphs.traced import CACHE, Traced, semantic
from tests.models import VOCAB

LOWERING = "tensorrt-sm100"
FAMILIES = ["qwen3-moe", "gpt-oss"]
SILU = {"alpha": 1.0, "beta": 0.0, "limit": 0.0, "cubic": 0.0}
HIDDEN, INNER, EXPERTS, ACTIVE = 6, 5, 4, 2


def _layers(model: ir.Model) -> list[ir.Node]:
    return [node for node in model.graph if node.op_type == "TRT_MoE"]


def _expected(traced: Traced) -> int:
    """How many layers have routed experts; one of Qwen3-MoE's here has none."""
    semantic = graph_files.load(traced.folder / "target.onnx")
    return sum(node.op_type == "SparseExperts" for node in semantic.graph)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_layer_of_experts_is_one_node_without_empty_inputs(family: str, trace_of: Any) -> None:
    traced = trace_of(family)
    model = traced.lowered("target", LOWERING).model
    layers = _layers(model)
    assert len(layers) == _expected(traced) > 1
    assert {len(node.inputs) for node in layers} == {9 if family == "gpt-oss" else 6}
    assert all(None not in node.inputs and node.domain == "trt" for node in layers)
    assert [f.name for f in model.functions.values() if f.domain == "trt"] == ["TRT_MoE"]
    swiglu = {name for node in layers for name in node.attributes if name.startswith("swiglu")}
    assert swiglu == ({"swiglu_alpha", "swiglu_beta", "swiglu_limit"} if family == "gpt-oss" else set())
    check(traced.built("target", LOWERING))


def test_weights_are_stored_as_in_every_other_lowering(trace_of: Any) -> None:
    dense, native = (trace_of("gpt-oss").lowered("target", name) for name in ("tensorrt", LOWERING))
    assert {w.name: (w.parts, w.shape) for w in native.weights} == {w.name: (w.parts, w.shape) for w in dense.weights}


@pytest.mark.parametrize("family", FAMILIES)
def test_body_matches_std(family: str, trace_of: Any, rng: np.random.Generator) -> None:
    traced = trace_of(family)
    std, ours = (
        Graph(traced.built("target", lowering), traced.target.caches, CACHE, rows=2) for lowering in ("std", LOWERING)
    )
    for start, width in ((0, 12), (12, 5)):
        window = target_inputs(rng.integers(2, VOCAB, (2, width)), start, width - 1, width)
        expected, out = std(**window), ours(**window)
        assert out["tokens"].tolist() == expected["tokens"].tolist()
        np.testing.assert_allclose(out["logits"], expected["logits"], atol=1e-4)


def _one_layer(attributes: dict[str, float], biased: bool) -> ir.Model:
    """``SparseExperts`` alone, every tensor an input."""
    shapes: dict[str, list[Any]] = {
        "x": ["N", HIDDEN], "experts": ["N", ACTIVE], "scores": ["N", ACTIVE],
        "gate_up": [EXPERTS, 2 * INNER, HIDDEN], "down": [EXPERTS, HIDDEN, INNER],
    }  # fmt: skip
    shapes |= {"gate_up_bias": [EXPERTS, 2 * INNER], "down_bias": [EXPERTS, HIDDEN]} if biased else {}
    inputs = [
        ir.Value(
            name=name,
            shape=ir.Shape(shape),
            type=ir.TensorType(ir.DataType.INT64 if name == "experts" else ir.DataType.FLOAT),
        )
        for name, shape in shapes.items()
    ]
    node = ir.node("SparseExperts", inputs, attributes, domain="peagle")
    node.outputs[0].name, node.outputs[0].shape = "y", ir.Shape(["N", HIDDEN])
    node.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
    graph = ir.Graph(inputs, node.outputs, nodes=[node], opset_imports={"": 24, "peagle": 1}, name="layer")
    model = ir.Model(graph, ir_version=11)
    LOWERINGS[LOWERING].apply(model)
    return model


@given(
    tokens=st.integers(1, 4),
    attributes=st.sampled_from([SILU, CLAMPED, CLAMPED | {"limit": 0.25}, GELU]),
    biased=st.booleans(),
    seed=st.integers(0, 99),
)
@settings(max_examples=20, deadline=None)
def test_one_layer_matches_the_reference(tokens: int, attributes: dict[str, float], biased: bool, seed: int) -> None:
    model = _one_layer(attributes, biased)
    assert len(_layers(model)) == (attributes is not GELU)  # which TensorRT's layer does not have: dense
    draw = np.random.default_rng(seed)
    values = {
        value.name: draw.standard_normal([tokens if d == "N" else d for d in value.shape]).astype(np.float32)
        for value in model.graph.inputs
    }
    values["experts"] = np.array([draw.permutation(EXPERTS)[:ACTIVE] for _ in range(tokens)])
    values["scores"] = np.abs(values["scores"])
    session = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString(), providers=["CPUExecutionProvider"])
    (expected,) = OPS["SparseExperts"].reference(*values.values(), **attributes)
    largest = max(float(np.abs(expected).max()), 1.0)  # float32 sums are as exact as their largest term
    np.testing.assert_allclose(session.run(None, values)[0], expected, rtol=0, atol=1e-5 * largest)


# The layer cannot be built for any GPU of TensorRT-RTX. Parsed it can be, which checks types and shapes.
_PARSE = """
import json, sys
from pathlib import Path
from peagle.compiler.tensorrt.callbacks import Log, logger
from peagle.compiler.tensorrt.parse_network import parse
from peagle.compiler.tensorrt.preflight import survey
from peagle.plugins.tensorrt.import_tensorrt import load
from peagle.plugins.tensorrt.register import register

trt = load("tensorrt-rtx")
register(trt)
log = Log()
to = logger(trt, log)
parsed = parse(trt, trt.Builder(to), to, log, survey(Path(sys.argv[1]), ("sm_100",), ()))
moe = []
for i in range(parsed.network.num_layers):
    layer = parsed.network.get_layer(i)
    if layer.type.name == "MOE":
        layer.__class__ = trt.IMoELayer
        terms = [layer.swiglu_param_alpha, layer.swiglu_param_beta, layer.swiglu_param_limit]
        moe.append({"inputs": layer.num_inputs, "terms": terms})
print(json.dumps({"layers": parsed.layers, "moe": moe}))
"""


@pytest.mark.parametrize(
    ("family", "dtype", "inputs", "terms"),
    [("qwen3-moe", "float16", 6, (1.0, 0.0, np.inf)), ("gpt-oss", "bfloat16", 9, (1.702, 1.0, 0.5))],
)
def test_tensorrt_parses_the_layer_and_not_the_body(
    family: str, dtype: trace.Dtype, inputs: int, terms: tuple[float, ...], trace_of: Any, tmp_path: Path
) -> None:
    pytest.importorskip("tensorrt_rtx")
    traced: Traced = trace_of(family)
    graph = graph_files.load(semantic(traced.pair, "target", dtype))
    path = tmp_path / "model.onnx"
    stream_weights.attach(lower(graph, LOWERINGS[LOWERING], cache_length=CACHE), traced.pair.target_weights(), path)
    environment = os.environ | child_environment(tmp_path / "library")
    process = subprocess.run(
        [sys.executable, "-c", _PARSE, str(path)], env=environment, capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr
    answer = json.loads(process.stdout.splitlines()[-1])
    assert answer["layers"]["MOE"] == _expected(traced)
    assert answer["layers"]["PLUGIN_V3"] == 1
    assert "SCATTER" not in answer["layers"]  # of the body
    for layer in answer["moe"]:
        assert layer["inputs"] == inputs
        assert layer["terms"] == pytest.approx(terms, rel=1e-6)


# It has no code for the layer, and says so of an operation that it made of the layer's neighbours: of codes, if it can.
_FOLD = """
import sys
from peagle.compiler.tensorrt.callbacks import Log, logger
from peagle.plugins.tensorrt.import_tensorrt import load

trt = load("tensorrt-rtx")
log = Log()
to = logger(trt, log)
builder = trt.Builder(to)
network = builder.create_network(0)
parser = trt.OnnxParser(network, to)
assert parser.parse_from_file(sys.argv[1])
config = builder.create_builder_config()
config.num_compute_capabilities = 1
config.set_compute_capability(trt.ComputeCapability.SM120, 0)
assert builder.build_serialized_network(network, config) is None
"""


def test_tensorrt_folds_codes_and_layer_into_one_product_of_codes(tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx")
    layer = Layer("halves", {"alpha": 1.0, "beta": 0.0, "limit": 0.0}, biased=False, seed=0)
    cuts = split_experts(layer.model)
    LOWERINGS[LOWERING].apply(layer.model)
    for value in layer.model.graph.inputs:
        value.shape = ir.Shape([3 if dim == "N" else dim for dim in value.shape or ()])
    stream_weights.attach(finish(layer.model), layer.read, tmp_path / "model.onnx", cuts=cuts)
    process = subprocess.run(
        [sys.executable, "-c", _FOLD, str(tmp_path / "model.onnx")],
        env=os.environ | child_environment(tmp_path / "library"), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    product = re.search(r"moe_fc1: (\S+)\((\w+)\[.*? \| (.*)", process.stdout + process.stderr)
    assert product is not None
    factors = re.findall(r"\((f8|f16|bf16|f32|i32)\[[^\]]*\]\[", product[3])
    assert (product[2], factors[:3]) == ("f8", ["f8"] * 3), "what comes out, tokens, gate and up"
