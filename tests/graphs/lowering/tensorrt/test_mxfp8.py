"""MXFP8 in the graph: every lowering equals fake quantization in torch, with one byte per weight."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch

from peagle.compiler.checkpoints.checkpoint import Checkpoint
from peagle.compiler.console.progress import Quiet
from peagle.compiler.pipeline import graph_stages
from peagle.compiler.pipeline.component import target_component
from peagle.compiler.precision.recipes import RECIPES
from peagle.compiler.store.stages import StageStore
from peagle.graphs import graph_files
from peagle.graphs.drafters import torch_reference
from peagle.graphs.lowering import LOWERINGS
from peagle.graphs.quantization import GraphProduct, QuantizedWeight, Rounding, products_of, quantize
from peagle.graphs.targets import TargetSpec, family_for
from peagle.plugins.number_types import MX_BLOCK
from peagle.plugins.ops.microscaled_round.reference import microscaled_round
from tests.graphs.checking import check
from tests.graphs.forced import forced, rounded_inputs, showing
from tests.graphs.running import Graph, target_inputs
from tests.graphs.traced import CACHE
from tests.models import BLOCKED, LAYERS, VOCAB, Pair, make_pair

E4M3 = "float8e4m3fn"
ROUNDED = Rounding(codes="float8_e4m3fn", block=MX_BLOCK)


@dataclass(frozen=True)
class Blocked:
    """A tiny pair, and its target's graphs in MXFP8."""

    pair: Pair
    spec: TargetSpec
    compiled: Callable[[str], graph_stages.Compiled]
    plain: Callable[[], Any]

    def graph(self, lowering: str) -> Path:
        return self.compiled(lowering).attached.path / graph_stages.MODEL

    def found(self, lowering: str) -> dict[str, GraphProduct]:
        return {each.weight: each for each in products_of(graph_files.load(self.graph(lowering)))}


def _plain(pair: Pair) -> Any:
    """The target in ``transformers``, its weights as MXFP8 has them."""
    checkpoint = Checkpoint.open(pair.target)
    model = family_for(checkpoint.config).load(pair.target, checkpoint.config)
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and "lm_head" not in name:
            module.weight.data = _rounded(module.weight.data)
        elif name.endswith(".experts"):  # stored in MXFP8, multiplied wide
            module.gate_up_proj.data = _rounded(module.gate_up_proj.data)
            module.down_proj.data = _rounded(module.down_proj.data)
    return model


def _product(columns: int) -> ir.Model:
    """``y = x @ w.T``."""
    x = ir.Value(name="x", shape=ir.Shape(["N", columns]), type=ir.TensorType(ir.DataType.FLOAT))
    w = ir.Value(name="w", shape=ir.Shape([4, columns]), type=ir.TensorType(ir.DataType.FLOAT))
    w.const_value = ir.ExternalTensor("weights", None, None, ir.DataType.FLOAT, shape=w.shape, name="w")
    turn = ir.node("Transpose", [w], {"perm": [1, 0]})
    turn.outputs[0].shape = ir.Shape([columns, 4])
    product = ir.node("MatMul", [x, turn.outputs[0]])
    product.outputs[0].name = "y"
    graph = ir.Graph([x], product.outputs, nodes=[turn, product], initializers=[w], opset_imports={"": 24})
    return ir.Model(graph, ir_version=11)


def _rounded(x: torch.Tensor) -> torch.Tensor:
    """With zeros behind every row, as many as it takes to make the last block whole."""
    columns = x.shape[-1]
    whole = torch.nn.functional.pad(x.detach(), (0, -columns % MX_BLOCK)).numpy()
    return torch.from_numpy(microscaled_round(whole)[0][..., :columns].copy())


@pytest.fixture(scope="module")
def blocked_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Blocked]:
    """A family in FP32 and MXFP8, so that ONNX Runtime can run it; ``family:partial`` has rows that end in a block."""

    @cache
    def make(kind: str) -> Blocked:
        family, _, partial = kind.partition(":")
        folder = tmp_path_factory.mktemp(f"{family}-blocked")
        pair = make_pair(folder, family) if partial else make_pair(folder, family, sizes=BLOCKED)
        spec, _ = pair.specs()
        store = StageStore.default()

        @cache
        def compiled(lowering: str) -> graph_stages.Compiled:
            recipe = replace(RECIPES["mxfp8"].on("fp32"), allow_wide=("experts",))
            half = target_component(pair.opened(), recipe, LOWERINGS[lowering])
            traced = graph_stages.trace(store, half, "float32", Quiet())
            return graph_stages.attach(
                store, half, traced, lowering=LOWERINGS[lowering], cache_length=CACHE, progress=Quiet()
            )

        return Blocked(pair, spec, compiled, cache(lambda: _plain(pair)))

    return make


WHOLE = [pytest.param(family, marks=pytest.mark.slow) for family in ("qwen3", "qwen3-moe")]


@pytest.fixture(scope="module", params=["qwen3:partial", "qwen3-moe:partial", *WHOLE])
def blocked(request: pytest.FixtureRequest, blocked_of: Callable[[str], Blocked]) -> Blocked:
    return blocked_of(request.param)


@pytest.mark.parametrize("lowering", ["std", "tensorrt", "tensorrt-sm100"])
def test_graph_matches_fake_quantization_in_torch(
    blocked: Blocked, lowering: str, rng: np.random.Generator, tmp_path: Path
) -> None:
    rows, width = 4, 3
    inputs = rounded_inputs(blocked.graph(lowering))
    assert len(inputs) == sum(
        len(name.split("+")) for name, each in blocked.found(lowering).items() if each.computed == E4M3
    )
    path = showing(blocked.graph(lowering), set(inputs.values()), tmp_path)
    ids = rng.integers(2, VOCAB, (rows, width))
    out = Graph(path, blocked.spec.caches, CACHE, rows=rows)(**target_inputs(ids, 0, width - 1, width))
    model = blocked.plain()
    for row, tokens in enumerate(ids):
        values = {module: out[name][row] for module, name in inputs.items()}
        with forced(model, values, lambda _, x: _rounded(x)) as distances:
            passes = torch_reference.target_pass(model, blocked.spec, tokens.tolist())
        assert distances.keys() == values.keys()
        assert max(distances.values()) < 1e-4
        for place, name in enumerate(("logits", "aux_hidden")):
            np.testing.assert_allclose(out[name][row], passes[place].numpy(), atol=1e-4)


def test_onnx_runtime_graph_gives_the_same(blocked: Blocked, rng: np.random.Generator) -> None:
    """All but where the seventh digit of a number decides to which neighbour it is rounded."""
    rows, width = 24, 3
    window = target_inputs(rng.integers(2, VOCAB, (rows, width)), 0, width - 1, width)
    ours, theirs = (
        Graph(blocked.graph(lowering), blocked.spec.caches, CACHE, rows=rows)(**window) for lowering in ("ort", "std")
    )
    for name in ("logits", "aux_hidden"):
        differences = np.abs(ours[name] - theirs[name]).max(axis=-1)
        assert np.mean(differences < 1e-4) > 0.8


def test_rounding_in_blocks_changes_the_logits(blocked: Blocked, rng: np.random.Generator) -> None:
    """The tolerance of the other tests distinguishes the quantized model from the original."""
    checkpoint = Checkpoint.open(blocked.pair.target)
    model = family_for(checkpoint.config).load(blocked.pair.target, checkpoint.config)
    ids = rng.integers(2, VOCAB, (1, 3))
    wide, _ = torch_reference.target_pass(model, blocked.spec, ids[0].tolist())
    out = Graph(blocked.graph("std"), blocked.spec.caches, CACHE)(**target_inputs(ids, 0, 2, 3))
    assert np.abs(out["logits"][0] - wide.numpy()).max() > 1e-3


@pytest.mark.parametrize("lowering", sorted(LOWERINGS))
def test_every_linear_multiplies_in_e4m3_and_experts_are_stored_in_it(blocked: Blocked, lowering: str) -> None:
    products = blocked.found(lowering)
    linears = [each for name, each in products.items() if name.endswith("_proj.weight") or "+" in name]
    assert {(each.stored, each.computed) for each in linears} == {(E4M3, E4M3)}
    experts = [each for name, each in products.items() if "experts" in name]
    assert {(each.stored, each.computed) for each in experts} <= {(E4M3, "float32")}
    assert len(experts) == (2 * (LAYERS - 1) if blocked.spec.family == "qwen3-moe" else 0)
    record = blocked.compiled(lowering).precision
    assert record is not None
    numbers = {True: 0, False: 0}
    for row in record["matmuls"]:
        numbers["experts" in row["weight"]] += row["numbers"] * row["narrow"]
    dense = numbers[False] / sum(numbers.values())
    assert record["stored_share"] == record["accepted_share"] == 1
    assert record["share"] == (pytest.approx(dense, abs=0.02) if LOWERINGS[lowering].is_tensorrt else 0)
    assert bool(record["shortfall"]) == (LOWERINGS[lowering].is_tensorrt and numbers[True] > 0)


def test_a_weight_takes_a_byte_for_each_number_and_one_for_each_block(blocked: Blocked) -> None:
    initializers = ir.load(blocked.graph("tensorrt")).graph.initializers
    names = [f"model.layers.3.mlp.{kind}_proj.weight" for kind in ("gate", "up")]  # one matmul
    codes, scales = (initializers["+".join(f"{name}{end}" for name in names)].const_value for end in ("", "_scale"))
    assert (codes.dtype, scales.dtype) == (ir.DataType.FLOAT8E4M3FN, ir.DataType.UINT8)
    assert codes.length == MX_BLOCK * scales.length == codes.size
    hidden = blocked.spec.hidden_size
    assert codes.shape[-1] == hidden + -hidden % MX_BLOCK
    assert not np.any(codes.numpy()[:, hidden:].astype(np.float32))


def test_shared_input_is_rounded_once(blocked: Blocked) -> None:
    kinds = Counter(node.op_type for node in graph_files.load(blocked.graph("tensorrt")).graph)
    dense = 1 if blocked.spec.family == "qwen3-moe" else LAYERS
    assert kinds["TRT_MXFP8DynamicQuantize"] == 2 * LAYERS + 2 * dense  # of q, k and v; of o; of gate and up; of down
    assert kinds["DequantizeLinear"] == kinds["MicroscaledRound"] == 0


@pytest.mark.parametrize("lowering", ["std", "tensorrt"])
def test_the_checker_passes_both_graphs(blocked: Blocked, lowering: str) -> None:
    check(blocked.graph(lowering), blocked.compiled(lowering).attached.path / graph_stages.SEMANTIC)


@pytest.mark.parametrize(("columns", "stored"), [(64, 64), (48, 64), (20, 32)])
@pytest.mark.parametrize("rounds", [True, False])
def test_input_padding_matches_the_codes(columns: int, stored: int, rounds: bool) -> None:
    model = _product(columns)
    how = QuantizedWeight("float8_e4m3fn", (4, stored // MX_BLOCK), MX_BLOCK, ROUNDED if rounds else None, True)
    quantize(model, {"w": how})
    kinds = Counter(node.op_type for node in model.graph)
    assert kinds["Pad"] == (rounds and stored > columns)
    assert kinds["Slice"] == (not rounds and stored > columns)
    assert list(model.graph.initializers["w"].shape) == [4, stored]
    (node,) = (node for node in model.graph if node.op_type == "MatMul")
    assert [list(value.shape) for value in node.inputs] == [
        ["N", stored if rounds else columns], [stored if rounds else columns, 4]
    ]  # fmt: skip
    (product,) = products_of(model)
    assert (product.stored, product.computed) == (E4M3, E4M3 if rounds else "float32")


def test_a_semantic_graph_has_one_node_for_a_rounded_input_and_a_byte_for_a_scale() -> None:
    model = _product(64)
    quantize(model, {"w": QuantizedWeight("float8_e4m3fn", (4, 2), MX_BLOCK, ROUNDED, True)})
    assert Counter(node.op_type for node in model.graph)["MicroscaledRound"] == 1
    assert model.opset_imports["peagle"] == 1
    assert list(model.graph.initializers["w_scale"].shape) == [4, 2]
    (product,) = products_of(model)
    assert (product.stored, product.computed) == (E4M3, E4M3)
