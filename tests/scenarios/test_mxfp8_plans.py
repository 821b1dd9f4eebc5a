"""MXFP8 in TensorRT-RTX: its nodes are parsed one for one, and a plan stores one byte per weight."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx_ir.passes.common import RemoveUnusedNodesPass

from peagle.compiler.console.progress import Quiet
from peagle.compiler.pipeline import graph_stages
from peagle.compiler.pipeline.component import target_component
from peagle.compiler.precision.recipes import RECIPES
from peagle.compiler.precision.rounding.numbers_to_codes import rounded
from peagle.compiler.store.stages import StageStore
from peagle.compiler.tensorrt.build_plan import build_plan
from peagle.compiler.tensorrt.preflight import survey
from peagle.graphs.lowering import LOWERINGS
from peagle.graphs.lowering.tensorrt import mxfp8
from peagle.graphs.quantization import QuantizedWeight, Rounding, quantize
from peagle.plugins.errors import BuildError
from peagle.plugins.number_types import powers_of_two, to_e8m0
from tests.compiler.tensorrt.conftest import CACHE
from tests.compiler.tensorrt.small import profiles, request
from tests.models import CONFIGS, LAYERS, make_pair

pytest.importorskip("tensorrt_rtx", reason="needs TensorRT-RTX")

SIZE, BLOCK = 1024, 32
PARTIAL = 1000  # columns: the last block of a row is not whole
F16 = ir.TensorType(ir.DataType.FLOAT16)


@pytest.fixture(scope="module")
def product(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _product(tmp_path_factory.mktemp("mxfp8"), SIZE)


def _product(folder: Path, columns: int) -> Path:
    """``y = x @ w.T`` in MXFP8, as TensorRT gets it."""
    x = ir.Value(name="x", shape=ir.Shape(["B", columns]), type=F16)
    w = ir.Value(name="w", shape=ir.Shape([SIZE, columns]), type=F16)
    w.const_value = ir.ExternalTensor("weights", None, None, ir.DataType.FLOAT16, shape=w.shape, name="w")
    turn = ir.node("Transpose", [w], {"perm": [1, 0]})
    y = ir.node("MatMul", [x, turn.outputs[0]]).outputs[0]
    y.name, y.shape, y.type = "y", ir.Shape(["B", SIZE]), F16
    producer = y.producer()
    assert producer is not None
    model = ir.Model(
        ir.Graph([x], [y], nodes=[turn, producer], initializers=[w], opset_imports={"": 24}), ir_version=11
    )
    rounding = Rounding("float8_e4m3fn", None, BLOCK)
    quantize(model, {"w": QuantizedWeight("float8_e4m3fn", (SIZE, SIZE // BLOCK), BLOCK, rounding, powers=True)})
    mxfp8.apply(model)
    RemoveUnusedNodesPass()(model)
    values = np.random.default_rng(0).normal(size=(SIZE, columns)).astype(np.float32)
    blocks = np.pad(values, ((0, 0), (0, SIZE - columns))).reshape(SIZE, SIZE // BLOCK, BLOCK)
    scales = powers_of_two(np.abs(blocks).max(axis=-1))
    initializers = model.graph.initializers
    initializers["w"].const_value = ir.tensor(rounded(blocks, scales[..., None], "float8_e4m3fn").reshape(SIZE, SIZE))
    initializers["w_scale"].const_value = ir.tensor(to_e8m0(scales))
    path = folder / "model.onnx"
    onnx.save_model(ir.to_proto(model), path)
    return path


@pytest.mark.parametrize("gpu", ["sm_89", "sm_120"])
def test_plan_stores_weights_in_one_byte(product: Path, gpu: str, tmp_path: Path) -> None:
    layers = {"DYNAMIC_QUANTIZE": 1, "DEQUANTIZE": 2, "QUANTIZE": 0}
    facts = build_plan(request(product, gpus=(gpu,), layers=layers), tmp_path / "plan", Quiet())
    numbers = SIZE * SIZE
    assert numbers < facts.size < 2 * numbers  # kernels included


def test_plan_with_partial_blocks_stores_weights_in_one_byte(tmp_path: Path) -> None:
    """What enters gets zeros first: TensorRT takes whole blocks only."""
    layers = {"DYNAMIC_QUANTIZE": 1, "DEQUANTIZE": 2, "QUANTIZE": 0}
    asked = request(_product(tmp_path, PARTIAL), gpus=("sm_120",), layers=layers)
    facts = build_plan(asked, tmp_path / "plan", Quiet())
    (found,) = facts.products
    assert (found.stored, found.numbers, found.by) == ("float8e4m3fn", SIZE * SIZE, "plan")
    assert SIZE * SIZE < facts.size < 2.5 * SIZE * SIZE  # FP16 weights beside as much of kernels would be more


@pytest.mark.parametrize("gpus", [("sm_80",), ("sm_86", "sm_120")])
def test_gpus_without_fp8_are_refused_before_tensorrt_sees_the_graph(product: Path, gpus: tuple[str, ...]) -> None:
    with pytest.raises(BuildError) as caught:
        survey(product, gpus, profiles())
    assert f"TensorRT does not support FP8 on {gpus[0]}, only on sm_89 and newer" in caught.value.why


def test_input_with_partial_blocks_is_rejected(product: Path, tmp_path: Path) -> None:
    model = onnx.load(product)
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = PARTIAL
    onnx.save_model(model, tmp_path / "model.onnx")
    with pytest.raises(BuildError) as caught:
        survey(tmp_path / "model.onnx", ("sm_120",), profiles())
    assert "the node quantizes blocks of 32, but its input has 1000 columns" in caught.value.why


@pytest.fixture(scope="module")
def target_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The graph of a tiny target in FP16 and MXFP8; its rows end within blocks."""

    @cache
    def make(family: str) -> Path:
        pair = make_pair(tmp_path_factory.mktemp(family), family)
        recipe = replace(RECIPES["mxfp8"].on("fp16"), allow_wide=("experts",))
        half = target_component(pair.opened(), recipe, LOWERINGS["tensorrt"])
        kept = StageStore.default()
        traced = graph_stages.trace(kept, half, "float16", Quiet())
        made = graph_stages.attach(
            kept, half, traced, lowering=LOWERINGS["tensorrt"], cache_length=CACHE, progress=Quiet()
        )
        return made.attached.path / graph_stages.MODEL

    return make


@pytest.mark.slow
@pytest.mark.parametrize("family", list(CONFIGS))
def test_every_family_becomes_a_plan(family: str, target_of: Callable[[str], Path], tmp_path: Path) -> None:
    """With a layer for each node that quantizes, which the build counts."""
    asked = request(target_of(family), name="target", gpus=("sm_89", "sm_120"))
    layers = survey(asked.graph, asked.gpus, asked.profiles).layers
    assert layers["DYNAMIC_QUANTIZE"] >= 2 * LAYERS
    assert layers["DEQUANTIZE"] >= 2 * layers["DYNAMIC_QUANTIZE"]  # one more for each stack of experts
    assert build_plan(asked, tmp_path / "plan", Quiet()).size > 0
