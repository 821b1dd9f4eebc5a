"""FP8 in the graph equals fake quantization in torch, and reports the changed and unchanged nodes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from peagle.compiler.checkpoints.checkpoint import Checkpoint
from peagle.compiler.checkpoints.target import Target
from peagle.compiler.console.progress import Quiet
from peagle.compiler.pipeline import graph_stages
from peagle.compiler.pipeline.component import target_component
from peagle.compiler.precision.recipes import RECIPES
from peagle.compiler.store.stages import StageStore
from peagle.graphs import graph_files
from peagle.graphs.drafters import torch_reference
from peagle.graphs.lowering import LOWERINGS, GraphWeight, Lowered
from peagle.graphs.quantization import GraphProduct, QuantizedWeight, Rounding, products_of, quantize
from peagle.graphs.stream_weights import attach
from peagle.plugins.errors import BuildError
from tests.fp8_pairs import LINEAR, fake_quantized, fp8_target, input_scale, rounded
from tests.graphs.checking import check
from tests.graphs.forced import forced, rounded_inputs, showing
from tests.graphs.running import Graph, target_inputs
from tests.graphs.traced import CACHE, Traced
from tests.models import LAYERS, VOCAB

E4M3 = "float8e4m3fn"
LAYOUT = re.compile(r"\.(gate|up|turned)$")  # of a stack of experts for TensorRT's own layer
SLOW = ("llama", "gemma-4", "gpt-oss")
FAMILIES = ["qwen3", "qwen3-moe", *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]


@dataclass(frozen=True)
class QuantizedPair:
    """A traced pair, its target stored in FP8, and the lowered FP8 graphs of that."""

    traced: Traced
    target: Path
    compiled: Callable[[str], graph_stages.Compiled]

    def graph(self, lowering: str) -> Path:
        return self.compiled(lowering).attached.path / graph_stages.MODEL

    def found(self, lowering: str) -> dict[str, GraphProduct]:
        """By weight; several may be one product."""
        products = products_of(graph_files.load(self.graph(lowering)))
        return {weight: each for each in products for weight in each.weight.split("+")}


@pytest.fixture(scope="session")
def quantized_of(
    trace_of: Callable[[str], Traced], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], QuantizedPair]:
    """A family in FP32 and FP8, so that ONNX Runtime can run it."""

    @cache
    def make(family: str, form: str = "modelopt-fp8") -> QuantizedPair:
        traced = trace_of(family)
        folder = fp8_target(traced.pair.target, tmp_path_factory.mktemp(f"{family}-fp8") / "target", form)
        target = Target.open(folder).with_taps(traced.target.taps)
        half = target_component(target, RECIPES["fp8"])
        stage = graph_stages.trace(StageStore.default(), half, "float32", Quiet())

        @cache
        def compiled(lowering: str) -> graph_stages.Compiled:
            half = target_component(target, RECIPES["fp8"], LOWERINGS[lowering])
            return graph_stages.attach(
                StageStore.default(), half, stage, lowering=LOWERINGS[lowering], cache_length=CACHE, progress=Quiet()
            )

        return QuantizedPair(traced, folder, compiled)

    return make


@pytest.fixture(scope="session", params=FAMILIES)
def quantized(request: pytest.FixtureRequest, quantized_of: Callable[[str], QuantizedPair]) -> QuantizedPair:
    return quantized_of(request.param)


def _rounded(quantized: QuantizedPair, lowering: str) -> dict[str, float]:
    """Module by module, the scale of its input: q, k and v share the largest of theirs, and so do gate and up."""
    multiplied = [name.removesuffix(".weight") for name, m in quantized.found(lowering).items() if m.computed == E4M3]
    linears = dict.fromkeys(LAYOUT.sub("", name) for name in multiplied)
    shared = {"q_proj": "k_proj", "v_proj": "k_proj"}  # the fixture gives k the largest
    return {
        name: input_scale(
            ".".join([*name.split(".")[:-1], shared.get(name.split(".")[-1], name.split(".")[-1]), "weight"])
        )
        for name in linears
    }


@pytest.mark.parametrize("lowering", ["std", "tensorrt"])
def test_graph_matches_fake_quantization_in_torch(
    quantized: QuantizedPair, lowering: str, rng: np.random.Generator, tmp_path: Path
) -> None:
    _compare(quantized, lowering, rng, tmp_path)


def test_expert_layer_body_matches_fake_quantization(
    quantized_of: Callable[[str], QuantizedPair], rng: np.random.Generator, tmp_path: Path
) -> None:
    quantized = quantized_of("qwen3-moe")
    _compare(quantized, "tensorrt-sm100", rng, tmp_path)
    experts = [each for each in quantized.found("tensorrt-sm100").values() if each.op == "TRT_MoE"]
    assert len(experts) == 3 * (LAYERS - 1)
    assert {(each.stored, each.computed) for each in experts} == {(E4M3, E4M3)}
    record = quantized.compiled("tensorrt-sm100").precision
    assert record is not None
    assert record["share"] == 1
    assert record["shortfall"] == ""


def _compare(quantized: QuantizedPair, lowering: str, rng: np.random.Generator, tmp_path: Path) -> None:
    """To 1e-4, linear by linear. What enters experts cannot be given to torch: there the seventh digit of a number may
    decide to which E4M3 neighbour it is rounded, in a few windows, and the layers that follow then differ."""
    prompts, width = 24, 3
    scales = _rounded(quantized, lowering)
    experts = {name: scale for name, scale in scales.items() if ".experts." in name}
    model = fake_quantized(quantized.target, tmp_path / "plain", experts)
    caches, spec = quantized.traced.target.caches, quantized.traced.target
    inputs = rounded_inputs(quantized.graph(lowering))
    assert inputs.keys() == scales.keys() - experts.keys()
    graph = Graph(showing(quantized.graph(lowering), set(inputs.values()), tmp_path), caches, CACHE, rows=prompts)
    wide = Graph(quantized.traced.built("target", "std"), caches, CACHE, rows=prompts)
    ids = rng.integers(2, VOCAB, (prompts, width))
    window = target_inputs(ids, 0, width - 1, width)
    out, unrounded = graph(**window), wide(**window)
    apart = 0
    for row, tokens in enumerate(ids):
        values = {module: out[name][row] for module, name in inputs.items()}
        with forced(model, values, lambda module, x: rounded(x, scales[module])) as distances:
            logits, aux = torch_reference.target_pass(model, spec, tokens.tolist())
        assert distances.keys() == values.keys()
        furthest = max(
            *distances.values(),
            *(np.abs(out[name][row] - x.numpy()).max() for name, x in (("logits", logits), ("aux_hidden", aux))),
        )
        apart += furthest >= 1e-4
        assert np.abs(unrounded["logits"][row] - logits.numpy()).max() > 1e-3  # FP8 is not a no-op here
    assert apart <= (prompts // 8 if experts else 0)


def test_the_checker_passes_both_graphs(quantized: QuantizedPair) -> None:
    check(quantized.graph("tensorrt"), quantized.compiled("tensorrt").attached.path / graph_stages.SEMANTIC)


def test_linears_and_experts_use_fp8_and_the_rest_is_unquantized(quantized: QuantizedPair) -> None:
    products = quantized.found("tensorrt")
    kinds = Counter(
        (name.split(".")[-2 if name.endswith("weight") else -1], m.stored, m.computed) for name, m in products.items()
    )
    routed, router = {"qwen3-moe": (LAYERS - 1, "gate"), "gpt-oss": (LAYERS, "router")}.get(
        quantized.traced.target.family, (0, "")
    )
    expected = Counter({(f"{name}_proj", E4M3, E4M3): LAYERS for name in "qko"})
    expected["v_proj", E4M3, E4M3] = sum(
        bool(LINEAR.fullmatch(name)) and "v_proj" in name for name in Checkpoint.open(quantized.target).tensors
    )
    expected.update({(f"{name}_proj", E4M3, E4M3): LAYERS - routed for name in ("gate", "up")})
    expected["gate_up_proj", E4M3, E4M3] = routed
    expected["down_proj", E4M3, E4M3] = LAYERS  # one in a layer, of experts or not
    expected["lm_head" if "lm_head.weight" in products else "embed_tokens", "float32", "float32"] = 1
    expected[router, "float32", "float32"] = routed
    assert kinds == expected  # those of none count as absent


def test_shared_input_is_rounded_once_to_the_largest_scale(quantized: QuantizedPair) -> None:
    model = graph_files.load(quantized.graph("tensorrt"))
    nodes = [node for node in model.graph if node.op_type == "QuantizeLinear"]
    # of q, k and v; of o; of gate and up; of down; the same of all experts of a layer
    assert len(nodes) == 4 * LAYERS
    scales = Counter(round(_number(node.inputs[1]), 6) for node in nodes)
    assert scales == {0.012: LAYERS, 0.004: LAYERS, 0.009: 2 * LAYERS}
    record = quantized.compiled("tensorrt").precision
    assert record is not None
    shared = {len(each["weights"]): (each["scale"], each["smallest"]) for each in record["shared_inputs"]}
    assert shared[3] == pytest.approx((0.012, 0.010))


def _number(value: ir.Value) -> float:
    """An initializer, or a constant node from the body of an op."""
    maker = value.producer()
    return float(value.const_value.numpy()) if maker is None else maker.attributes["value_float"].as_float()


def test_weights_are_the_bytes_of_the_checkpoint(quantized_of: Callable[[str], QuantizedPair]) -> None:
    quantized = quantized_of("qwen3")
    path, names = quantized.graph("tensorrt"), [f"model.layers.2.mlp.{kind}_proj.weight" for kind in ("gate", "up")]
    tensor = graph_files.load(path).graph.initializers["+".join(names)].const_value
    content = (path.parent / tensor.location).read_bytes()[tensor.offset : tensor.offset + tensor.length]
    checkpoint = Checkpoint.open(quantized.target)
    assert content == b"".join(codes.tobytes() for name in names for codes in checkpoint.codes(name))
    assert len(content) == tensor.size


def test_a_semantic_graph_with_fp8_weights_lowers_again(quantized: QuantizedPair, rng: np.random.Generator) -> None:
    """It has its weights from the lowered one's file."""
    record = quantized.compiled("tensorrt").precision
    assert record is not None
    assert record["share"] == 1
    semantic = graph_files.load(quantized.compiled("tensorrt").attached.path / graph_stages.SEMANTIC)
    assert {each.weight for each in products_of(semantic)} == set(quantized.found("tensorrt"))


def test_numbers_that_were_not_scaled_are_never_written_as_codes(tmp_path: Path) -> None:
    model = _product()
    quantize(model, {"w": SCALE})
    lowered = Lowered(model, (GraphWeight("w", ("w",), (4, 4), "float8_e4m3fn"),))
    with pytest.raises(BuildError, match="was read as float32"):
        attach(lowered, lambda _: np.zeros((1, 4, 4), np.float32), tmp_path / "model.onnx")


def _product(weight_readers: int = 1, perm: tuple[int, int] = (1, 0)) -> ir.Model:
    """``y = x @ w.T``; further readers of the weight add its first row."""
    x = ir.Value(name="x", shape=ir.Shape(["N", 4]), type=ir.TensorType(ir.DataType.FLOAT))
    w = ir.Value(name="w", shape=ir.Shape([4, 4]), type=ir.TensorType(ir.DataType.FLOAT))
    w.const_value = ir.ExternalTensor("weights", None, None, ir.DataType.FLOAT, shape=w.shape, name="w")
    turn = ir.node("Transpose", [w], {"perm": perm})
    product = ir.node("MatMul", [x, turn.outputs[0]])
    nodes, y = [turn, product], product.outputs[0]
    for _ in range(weight_readers - 1):
        nodes.append(ir.node("ReduceSum", [w]))
        nodes.append(ir.node("Add", [y, nodes[-1].outputs[0]]))
        y = nodes[-1].outputs[0]
    y.name = "y"
    graph = ir.Graph([x], [y], nodes=nodes, initializers=[w], opset_imports={"": 24})
    return ir.Model(graph, ir_version=11)


SCALE = QuantizedWeight("float8_e4m3fn", input=Rounding("float8_e4m3fn", 0.1))


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (_product(perm=(0, 1)), "not transposed like the weight of a linear"),
    ],
)
def test_unsupported_weight_is_kept_with_a_reason(model: ir.Model, said: str) -> None:
    before = ir.to_proto(model).SerializeToString()
    result = quantize(model, {"w": SCALE})
    assert (result.done, list(result.refused)) == ((), ["w"])
    assert said in result.refused["w"]
    assert ir.to_proto(model).SerializeToString() == before


def test_weight_without_a_matmul_is_reported() -> None:
    model = _product()
    result = quantize(model, {"w": SCALE, "absent": SCALE})
    assert result.done == ("w",)
    assert "no node" in result.refused["absent"]


def test_input_without_a_scale_stays_unquantized() -> None:
    model = _product()
    quantize(model, {"w": QuantizedWeight("float8_e4m3fn")})
    assert Counter(node.op_type for node in model.graph) == {"DequantizeLinear": 1, "Transpose": 1, "MatMul": 1}
    (product,) = products_of(model)
    assert (product.stored, product.computed, product.numbers) == (E4M3, "float32", 16)


def test_other_readers_keep_the_unquantized_weight() -> None:
    model = _product(weight_readers=2)
    result = quantize(model, {"w": SCALE})
    assert result.done == ("w",)
    assert set(model.graph.initializers) == {"w", "w.codes", "w_scale", "x_scale"}
    assert {node.op_type for node, _ in model.graph.initializers["w"].uses()} == {"ReduceSum"}
    (product,) = products_of(model)
    assert (product.weight, product.stored, product.computed) == ("w.codes", E4M3, E4M3)


def test_a_number_too_large_for_float16_is_refused(tmp_path: Path) -> None:
    model = _product()
    lowered = Lowered(model, (GraphWeight("w", ("w",), (4, 4), "float16"),))
    with pytest.raises(BuildError, match="values overflow float16"):
        attach(lowered, lambda _: np.full((1, 4, 4), 70000, np.float32), tmp_path / "model.onnx")
